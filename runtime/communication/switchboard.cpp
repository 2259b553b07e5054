#include "runtime/communication/switchboard.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "engine/base/errors.h"
#include "runtime/control/members.h"

namespace rehearse::runtime {
namespace {

struct Greeting {
  std::uint32_t magic = 0x52484431;
  Id from = 0;
  std::uint64_t key = 0;
  std::array<char, 16> token = {};
};

}  // namespace

struct Switchboard::Impl {
  Control& control;
  Fd listener = listen_on(0), wake = make_signal();
  std::vector<std::uint16_t> ports = {};
  std::mutex mutex = {};
  std::condition_variable changed = {};
  std::map<std::pair<std::uint64_t, Id>, std::deque<Fd>> waiting = {};
  struct Taker {
    const void* owner = nullptr;
    std::function<void(Id, Fd)> take = {};
  };
  std::map<std::uint64_t, Taker> takers = {};
  std::atomic<bool> ending = false;
  std::thread thread = {};

  explicit Impl(Control& control_in) : control(control_in) {}

  Greeting greeting(std::uint64_t key) const {
    Greeting g;
    g.from = static_cast<Id>(control.environment().rank);
    g.key = key;
    const std::string& token = Members::token(control);
    std::memcpy(g.token.data(), token.data(), std::min(g.token.size(), token.size()));
    return g;
  }

  void admit(Fd fd) {
    Greeting g;
    // A rank greets at once. Another program may not, and must not delay the ranks for long.
    const auto deadline = Clock::now() + std::chrono::seconds(2);
    if (!recv_all(fd.get(), std::as_writable_bytes(std::span(&g, 1)), deadline)) return;
    const Greeting own = greeting(g.key);
    if (g.magic != own.magic || g.token != own.token || g.from >= ports.size()) return;
    const std::lock_guard lock(mutex);
    if (const auto taker = takers.find(g.key); taker != takers.end()) {
      taker->second.take(g.from, std::move(fd));
      return;
    }
    waiting[{g.key, g.from}].push_back(std::move(fd));
    changed.notify_all();
  }

  void run() {
    while (!ending.load()) {
      std::array<pollfd, 2> wait = {{{listener.get(), POLLIN, 0}, {wake.get(), POLLIN, 0}}};
      poll(wait.data(), wait.size(), -1);
      while (Fd fd = accept_from(listener.get())) admit(std::move(fd));
    }
  }
};

Switchboard::Switchboard(Control& control) : impl_(std::make_unique<Impl>(control)) {
  for (const std::string& port :
       control.gather("data port", std::to_string(port_of(impl_->listener.get())))) {
    impl_->ports.push_back(static_cast<std::uint16_t>(std::stoul(port)));
  }
  impl_->thread = std::thread([this] { impl_->run(); });
}

Switchboard::~Switchboard() {
  impl_->ending = true;
  notify(impl_->wake.get());
  impl_->thread.join();
}

std::uint64_t Switchboard::key_of(const std::string& channel, const std::vector<Id>& ranks) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto mix = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const char c : channel) mix(static_cast<unsigned char>(c));
  for (const Id rank : ranks) {
    for (int shift = 0; shift < 32; shift += 8) mix(static_cast<unsigned char>(rank >> shift));
  }
  return hash;
}

Fd Switchboard::connect(std::uint64_t key, const std::string& channel, Id to) {
  const auto deadline = Clock::now() + to_duration(impl_->control.options().join);
  try {
    Fd fd = connect_to(Members::of(impl_->control)[to].address, impl_->ports[to], deadline,
                       impl_->control.failure_fd());
    if (is_loopback(peer_address(fd.get()))) {
      // Between two ranks of one machine, the bytes that wait in the kernel should fit the cache.
      const int bytes = 512 << 10;
      setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    const Greeting g = impl_->greeting(key);
    if (send_all(fd.get(), std::as_bytes(std::span(&g, 1)), deadline)) return fd;
    throw BackendError("the connection ended");
  } catch (const BackendError& error) {
    impl_->control.check();
    impl_->control.blame(
        fmt::format("channel {}: cannot reach rank {}: {}", channel, to, error.what()));
  }
}

Fd Switchboard::await(std::uint64_t key, const std::string& channel, Id from) {
  const auto deadline = Clock::now() + to_duration(impl_->control.options().join);
  std::unique_lock lock(impl_->mutex);
  auto& queue = impl_->waiting[{key, from}];
  while (queue.empty()) {
    // A verdict does not signal this condition variable, so check for one every 50 ms.
    impl_->changed.wait_for(lock, std::chrono::milliseconds(50));
    impl_->control.check();
    if (queue.empty() && Clock::now() > deadline) {
      lock.unlock();
      impl_->control.blame(fmt::format("channel {}: rank {} has not connected within {}", channel,
                                       from, to_text(impl_->control.options().join)));
    }
  }
  Fd fd = std::move(queue.front());
  queue.pop_front();
  return fd;
}

void Switchboard::deliver(std::uint64_t key, const void* owner, std::function<void(Id, Fd)> take) {
  const std::lock_guard lock(impl_->mutex);
  for (auto& [at, queue] : impl_->waiting) {
    if (at.first != key) continue;
    for (Fd& fd : queue) take(at.second, std::move(fd));
    queue.clear();
  }
  impl_->takers[key] = {owner, std::move(take)};
}

void Switchboard::withdraw(std::uint64_t key, const void* owner) {
  const std::lock_guard lock(impl_->mutex);
  const auto taker = impl_->takers.find(key);
  // A newer owner may have replaced this one.
  if (taker != impl_->takers.end() && taker->second.owner == owner) impl_->takers.erase(taker);
}

}  // namespace rehearse::runtime
