#include "runtime/communication/switchboard.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"
#include "runtime/control/membership/members.h"
#include "runtime/control/net/door.h"

namespace rehearse::runtime {

struct Switchboard::Impl {
  Control& control;
  Fd wake = make_signal();
  Door door;
  struct Place {
    std::string address = {};
    std::uint16_t port = 0;
  };
  std::vector<Place> places = {};  // where ranks listen
  std::mutex mutex = {};
  std::condition_variable changed = {};
  std::map<std::pair<std::uint64_t, Id>, std::deque<ByteStream>> waiting = {};
  struct Taker {
    const void* owner = nullptr;
    std::function<void(Id, ByteStream)> take = {};
  };
  std::map<std::uint64_t, Taker> takers = {};
  std::atomic<bool> ending = false;
  std::thread thread = {};

  explicit Impl(Control& control_in)
      : control(control_in),
        door(listen_on(0, Members::address(control)), Members::data_secret(control),
             {.purpose = Purpose::data,
              .encrypted = control.options().encrypt,
              .to = self(),
              .start = start()}) {
    const std::string own =
        fmt::format("{} {}", Members::address(control), port_of(door.listener()));
    for (const std::string& text : control.gather("data address", own)) {
      std::istringstream in(text);
      Place& place = places.emplace_back();
      in >> place.address >> place.port;
      if (in.fail())
        control.refuse(static_cast<Id>(places.size() - 1), "no address of its data connections");
    }
  }

  std::uint32_t self() const { return static_cast<std::uint32_t>(control.environment().rank); }
  std::uint32_t start() const { return static_cast<std::uint32_t>(control.environment().start); }

  void admit(const Caller& caller, ByteStream stream) {
    if (caller.from >= places.size()) return;
    const std::lock_guard lock(mutex);
    if (const auto taker = takers.find(caller.channel); taker != takers.end()) {
      taker->second.take(caller.from, std::move(stream));
      return;
    }
    waiting[{caller.channel, caller.from}].push_back(std::move(stream));
    changed.notify_all();
  }

  void run() {
    while (!ending.load()) {
      std::vector<pollfd> wait = {{wake.get(), POLLIN, 0}};
      door.add_to(wait);
      poll(wait.data(), wait.size(), door.milliseconds());
      door.turn(
          [this](const Caller& caller, ByteStream stream) { admit(caller, std::move(stream)); });
    }
  }
};

Switchboard::Switchboard(Control& control) : impl_(std::make_unique<Impl>(control)) {
  impl_->thread = std::thread([this] { impl_->run(); });
}

Switchboard::~Switchboard() {
  impl_->ending = true;
  notify(impl_->wake.get());
  impl_->thread.join();
}

std::uint64_t Switchboard::key_of(const std::string& channel, const std::vector<Id>& ranks) {
  Fnv hash;
  hash.bytes(channel);
  for (const Id rank : ranks) hash.word(rank);
  return hash.value();
}

ByteStream Switchboard::connect(std::uint64_t key, const std::string& channel, Id to) {
  const auto deadline = Clock::now() + to_duration(impl_->control.options().join);
  try {
    const auto& [address, port] = impl_->places[to];
    const Caller self{.purpose = Purpose::data,
                      .encrypted = impl_->control.options().encrypt,
                      .from = impl_->self(),
                      .to = to,
                      .start = impl_->start(),
                      .channel = key};
    ByteStream stream = connect_as(self, Members::data_secret(impl_->control), address, port,
                                   deadline, impl_->control.failure_fd());
    if (peer_address(stream.fd()) == local_address(stream.fd())) {
      // Between two ranks of one machine, the bytes that wait in the kernel should fit the cache.
      const int bytes = 512 << 10;
      setsockopt(stream.fd(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    return stream;
  } catch (const BackendError& error) {
    impl_->control.check();
    impl_->control.blame(
        fmt::format("channel {}: cannot reach rank {}: {}", channel, to, error.what()));
  }
}

ByteStream Switchboard::await(std::uint64_t key, const std::string& channel, Id from) {
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
  ByteStream stream = std::move(queue.front());
  queue.pop_front();
  return stream;
}

void Switchboard::deliver(std::uint64_t key, const void* owner,
                          std::function<void(Id, ByteStream)> take) {
  const std::lock_guard lock(impl_->mutex);
  for (auto& [at, queue] : impl_->waiting) {
    if (at.first != key) continue;
    for (ByteStream& stream : queue) take(at.second, std::move(stream));
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
