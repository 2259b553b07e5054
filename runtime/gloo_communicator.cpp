#include "runtime/gloo_communicator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "engine/collectives/schedule.h"
#include "engine/errors.h"
#include "runtime/members.h"

namespace rehearse {
namespace {

using GlooGroup = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using Pending = c10::intrusive_ptr<c10d::Work>;

/// Gloo's own limit, far behind the control plane's: that one names who is to blame.
std::chrono::milliseconds patience_of(const Control& control) {
  return std::chrono::milliseconds(static_cast<long>(1e4 * control.options().timeout.value));
}

/// Whether Gloo has the collective at the bytes of the schedule. Its algorithms for these are the
/// ring (all-reduce, all-gather) and a binomial tree (broadcast).
bool has(const CollectiveSpec& spec, int members) {
  if (spec.dtype != DType::f32 && spec.dtype != DType::i32) return false;
  if (spec.algorithm != Algorithm::automatic && spec.algorithm != Algorithm::ring) return false;
  switch (spec.move) {
    case Move::all_reduce:
      return true;
    case Move::all_gather:
      return spec.elements % members == 0;
    case Move::broadcast:
      return spec.algorithm == Algorithm::automatic;
    default:
      return false;
  }
}

/// Payload of Gloo's ring, which is our ring's, or of its binomial tree.
std::int64_t sent_bytes(const CollectiveSpec& spec, int members, int member) {
  if (spec.move != Move::broadcast) {
    const std::vector<Id> nodes(static_cast<std::size_t>(members), 0);
    return schedule(spec.move, Algorithm::ring, spec.elements, nodes)->sent(member) *
           size_of(spec.dtype);
  }
  // Place p, counted from the root, sends to p + 2^k for every 2^k > p.
  const int place = (member - spec.root + members) % members;
  std::int64_t children = 0;
  for (int step = 1; step < members; step *= 2) {
    if (step > place && place + step < members) ++children;
  }
  return children * spec.elements * size_of(spec.dtype);
}

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(Control& control, std::unique_ptr<SocketCommunicator> sockets, GlooGroup group)
      : Communicator(sockets->channel(), sockets->ranks(), sockets->member()),
        control_(control),
        sockets_(std::move(sockets)),
        group_(std::move(group)) {}

  int prepare(const CollectiveSpec& spec) override {
    const auto known =
        std::ranges::find_if(entries_, [&](const Entry& e) { return e.spec == spec; });
    if (known != entries_.end()) return static_cast<int>(known - entries_.begin());
    const bool own = size() == 1 || !has(spec, size());
    entries_.push_back(
        {spec, own ? sockets_->prepare(spec) : -1, own ? 0 : sent_bytes(spec, size(), member())});
    return static_cast<int>(entries_.size()) - 1;
  }

  void run(int handle, void* source, void* target) override {
    const auto& [spec, by_sockets, sent] = entries_[static_cast<std::size_t>(handle)];
    if (by_sockets >= 0) {
      sockets_->run(by_sockets, source, target);
      return;
    }
    const std::int64_t part = spec.elements / size();
    std::vector<at::Tensor> whole = {tensor(target, spec.elements, spec.dtype)};
    switch (spec.move) {
      case Move::all_reduce:
        copy(target, source, spec.elements * size_of(spec.dtype));
        finish(group_->allreduce(whole), spec);
        break;
      case Move::all_gather: {
        at::Tensor own = tensor(source, part, spec.dtype);
        finish(group_->_allgather_base(whole[0], own), spec);
        break;
      }
      default: {
        if (member() == spec.root) copy(target, source, spec.elements * size_of(spec.dtype));
        c10d::BroadcastOptions options;
        options.rootRank = spec.root;
        finish(group_->broadcast(whole, options), spec);
      }
    }
    sent_ += sent;
    received_ += spec.move == Move::broadcast
                     ? (member() == spec.root ? 0 : spec.elements * size_of(spec.dtype))
                     : sent;
  }

  void send(Buffer buffer, int to) override { sockets_->send(buffer, to); }
  void recv(Buffer buffer, int from) override { sockets_->recv(buffer, from); }
  void exchange(Buffer out, int to, Buffer in, int from) override {
    sockets_->exchange(out, to, in, from);
  }
  void barrier() override { sockets_->barrier(); }
  Traffic traffic() const override {
    const Traffic own = sockets_->traffic();
    return {own.sent + sent_.load(), own.received + received_.load()};
  }
  std::int64_t scratch_bytes() const override { return sockets_->scratch_bytes(); }

 private:
  struct Entry {
    CollectiveSpec spec = {};
    int by_sockets = -1;    // a handle, where sockets do it
    std::int64_t sent = 0;  // bytes, where Gloo does
  };

  static at::Tensor tensor(void* data, std::int64_t elements, DType dtype) {
    return at::from_blob(data, {elements}, dtype == DType::f32 ? at::kFloat : at::kInt);
  }
  static void copy(void* to, const void* from, std::int64_t bytes) {
    if (to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }

  /// Waits for Gloo and for the control plane at once.
  void finish(const Pending& work, const CollectiveSpec& spec) {
    struct Done {
      std::mutex mutex = {};
      std::condition_variable changed = {};
      bool done = false;
    };
    const auto state = std::make_shared<Done>();
    work->getFuture()->addCallback([state](c10::ivalue::Future&) {
      const std::lock_guard lock(state->mutex);
      state->done = true;
      state->changed.notify_all();
    });
    std::unique_lock lock(state->mutex);
    while (!state->changed.wait_for(lock, std::chrono::milliseconds(50),
                                    [&] { return state->done; })) {
      if (!control_.failure()) continue;
      // Gloo's thread is still blocked in the collective, and destroying the group would wait for
      // it: this process ends with the verdict, so the group stays as it is.
      (void)group_.release();
      control_.check();
    }
    lock.unlock();
    try {
      work->wait();
    } catch (const std::exception& error) {
      control_.blame(fmt::format("channel {}: Gloo's collective on {} elements failed: {}",
                                 channel(), spec.elements, error.what()));
    }
  }

  Control& control_;
  std::unique_ptr<SocketCommunicator> sockets_;
  GlooGroup group_;
  std::vector<Entry> entries_ = {};
  std::atomic<std::int64_t> sent_ = 0, received_ = 0;
};

}  // namespace

struct Gloo::Impl {
  Control& control;
  c10::intrusive_ptr<c10d::Store> store = {};
  std::shared_ptr<::gloo::transport::Device> device = {};
};

Gloo::Gloo(Control& control) : impl_(new Impl{control}) {
  try {
    const auto& members = Members::of(control);
    const bool serves = control.environment().rank == 0;
    c10d::TCPStoreOptions options;
    options.isServer = serves;
    options.port = serves ? 0 : static_cast<std::uint16_t>(std::stoul(control.await("gloo port")));
    options.waitWorkers = false;
    options.timeout = patience_of(control);
    auto store =
        c10::make_intrusive<c10d::TCPStore>(serves ? "localhost" : members[0].address, options);
    // Gloo and its store write to sockets without MSG_NOSIGNAL: a dead peer must be an error, not
    // our end.
    std::signal(SIGPIPE, SIG_IGN);
    if (serves) control.publish("gloo port", std::to_string(store->getPort()));
    impl_->store = std::move(store);
    const bool one_host = std::ranges::all_of(
        members, [&](const MemberInfo& m) { return m.host == members[0].host; });
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    impl_->device = interface != nullptr
                        ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                    : one_host ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                               : c10d::ProcessGroupGloo::createDefaultDevice();
  } catch (const BackendError&) {
    throw;
  } catch (const std::exception& error) {
    throw BackendError(fmt::format("Gloo cannot be set up: {}", error.what()));
  }
}

Gloo::~Gloo() = default;

std::unique_ptr<Communicator> Gloo::communicator(std::unique_ptr<SocketCommunicator> sockets) {
  try {
    std::string name = sockets->channel();
    for (const Id rank : sockets->ranks()) name += fmt::format("/{}", rank);
    auto options = c10d::ProcessGroupGloo::Options::create(patience_of(impl_->control));
    options->devices.push_back(impl_->device);
    options->threads = 1;
    GlooGroup group;
    if (sockets->size() > 1) {
      group = c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10::make_intrusive<c10d::PrefixStore>(name, impl_->store), sockets->member(),
          sockets->size(), std::move(options));
    }
    return std::make_unique<GlooCommunicator>(impl_->control, std::move(sockets), std::move(group));
  } catch (const BackendError&) {
    throw;
  } catch (const std::exception& error) {
    impl_->control.blame(fmt::format("Gloo cannot connect a group: {}", error.what()));
  }
}

}  // namespace rehearse
