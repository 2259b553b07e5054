#include "runtime/communication/gloo_communicator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "engine/base/errors.h"
#include "engine/collectives/schedule.h"
#include "runtime/control/membership/members.h"
#include "runtime/control/net/interfaces.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {
namespace {

using GlooGroup = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using Pending = c10::intrusive_ptr<c10d::Work>;

/// Gloo's own timeout: ten times the control plane's, which therefore reports first and names who
/// is to blame.
std::chrono::milliseconds patience_of(const Control& control) {
  return std::chrono::milliseconds(static_cast<long>(1e4 * control.options().timeout.value));
}

/// Whether Gloo runs the collective, with the bytes of our schedule: rings of 32-bit numbers.
bool has(const CollectiveSpec& spec, int members) {
  if (spec.dtype != program::DType::f32 && spec.dtype != program::DType::i32) return false;
  if (spec.algorithm != program::Algorithm::automatic && spec.algorithm != program::Algorithm::ring)
    return false;
  return spec.move == program::Move::all_reduce ||
         (spec.move == program::Move::all_gather && spec.elements % members == 0);
}

/// Payload bytes that Gloo's ring sends, the same as our ring's.
std::int64_t sent_bytes(const CollectiveSpec& spec, int members, int member) {
  const std::vector<Id> nodes(static_cast<std::size_t>(members), 0);
  return collectives::schedule(spec.move, program::Algorithm::ring, spec.elements, nodes)
             ->sent(member) *
         size_of(spec.dtype);
}

/// Rendezvous of Gloo's groups through the control plane's values. Unlike c10d's own stores, it
/// tells a member that waits for a dead rank.
class ControlStore : public c10d::Store {
 public:
  ControlStore(Control& control, std::string prefix)
      : control_(control), prefix_(std::move(prefix)) {}
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<ControlStore>(control_, prefix_);
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    control_.publish(prefix_ + key, {value.begin(), value.end()});
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    const std::string value = control_.await(prefix_ + key);
    return {value.begin(), value.end()};
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::ranges::all_of(
        keys, [&](const std::string& key) { return control_.lookup(prefix_ + key).has_value(); });
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) control_.await(prefix_ + key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }
  std::int64_t add(const std::string&, std::int64_t) override { lacking("add"); }
  bool deleteKey(const std::string&) override { lacking("deleteKey"); }
  std::int64_t getNumKeys() override { lacking("getNumKeys"); }

 private:
  /// Gloo connects a full mesh with set, get and wait alone.
  [[noreturn]] static void lacking(const char* what) {
    throw BackendError(fmt::format("Gloo asks for {}, which the control plane has not", what));
  }

  Control& control_;
  std::string prefix_;
};

class GlooCommunicator : public Communicator {
 public:
  /// `connect` makes the group with the other members. It is called when the first collective that
  /// Gloo runs is prepared.
  GlooCommunicator(Control& control, std::unique_ptr<SocketCommunicator> sockets,
                   std::function<GlooGroup()> connect)
      : Communicator(sockets->channel(), sockets->ranks(), sockets->member()),
        control_(control),
        sockets_(std::move(sockets)),
        connect_(std::move(connect)) {}

  int prepare(const CollectiveSpec& spec) override {
    const auto known =
        std::ranges::find_if(entries_, [&](const Entry& e) { return e.spec == spec; });
    if (known != entries_.end()) return static_cast<int>(known - entries_.begin());
    const bool own = size() == 1 || !has(spec, size());
    if (!own && !group_) group_ = connect_();
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
    std::vector<at::Tensor> whole = {tensor(target, spec.elements, spec.dtype)};
    if (spec.move == program::Move::all_reduce) {
      if (target != source)
        std::memcpy(target, source, static_cast<std::size_t>(spec.elements * size_of(spec.dtype)));
      finish(group_->allreduce(whole), spec);
    } else {
      at::Tensor own = tensor(source, spec.elements / size(), spec.dtype);
      finish(group_->_allgather_base(whole[0], own), spec);
    }
    moved_ += sent;
  }

  void send(Buffer buffer, int to) override { sockets_->send(buffer, to); }
  void recv(Buffer buffer, int from) override { sockets_->recv(buffer, from); }
  void exchange(Buffer out, int to, Buffer in, int from) override {
    sockets_->exchange(out, to, in, from);
  }
  void barrier() override { sockets_->barrier(); }
  Traffic traffic() const override {
    const Traffic own = sockets_->traffic();
    return {own.sent + moved_.load(), own.received + moved_.load()};
  }
  std::int64_t scratch_bytes() const override { return sockets_->scratch_bytes(); }

 private:
  struct Entry {
    CollectiveSpec spec = {};
    int by_sockets = -1;    // handle of sockets_; -1: Gloo runs it
    std::int64_t sent = 0;  // bytes sent by Gloo in one run; 0: sockets run it
  };

  static at::Tensor tensor(void* data, std::int64_t elements, program::DType dtype) {
    return at::from_blob(data, {elements}, dtype == program::DType::f32 ? at::kFloat : at::kInt);
  }

  /// Waits for Gloo's result, and for a verdict of the control plane.
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
      // it. This process is about to end, so the group is leaked.
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
  std::function<GlooGroup()> connect_;
  GlooGroup group_ = {};
  std::vector<Entry> entries_ = {};
  // Bytes that Gloo sent. A ring receives as many.
  std::atomic<std::int64_t> moved_ = 0;
};

}  // namespace

struct Gloo::Impl {
  Control& control;
  std::shared_ptr<::gloo::transport::Device> device = {};
  std::map<std::string, int> made = {};  // number of groups made, by channel and ranks

  GlooGroup connect(const std::string& name, int member, int members) {
    try {
      auto options = c10d::ProcessGroupGloo::Options::create(patience_of(control));
      options->devices.push_back(device);
      options->threads = 1;
      return c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10::make_intrusive<ControlStore>(control,
                                            fmt::format("gloo {}#{}/", name, made[name]++)),
          member, members, std::move(options));
    } catch (const BackendError&) {
      throw;
    } catch (const std::exception& error) {
      control.blame(fmt::format("Gloo cannot connect the group {}: {}", name, error.what()));
    }
  }
};

Gloo::Gloo(Control& control) : impl_(new Impl{.control = control}) {
  // Gloo writes to sockets without MSG_NOSIGNAL. A dead peer must be an error, not a SIGPIPE that
  // ends this process.
  std::signal(SIGPIPE, SIG_IGN);
  const auto& members = Members::of(control);
  const std::string& host = members[static_cast<std::size_t>(control.environment().rank)].host;
  const auto elsewhere =
      std::ranges::find_if(members, [&](const MemberInfo& m) { return m.host != host; });
  try {
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    impl_->device = interface != nullptr
                        ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                        : c10d::ProcessGroupGloo::createDeviceForHostname(
                              elsewhere == members.end() ? std::string("127.0.0.1")
                                                         : address_towards(elsewhere->address));
  } catch (const BackendError&) {
    throw;
  } catch (const std::exception& error) {
    throw BackendError(fmt::format("Gloo cannot be set up: {}", error.what()));
  }
}

Gloo::~Gloo() = default;

std::unique_ptr<Communicator> Gloo::communicator(std::unique_ptr<SocketCommunicator> sockets) {
  std::string name = sockets->channel();
  for (const Id rank : sockets->ranks()) name += fmt::format("/{}", rank);
  const int member = sockets->member(), size = sockets->size();
  return std::make_unique<GlooCommunicator>(
      impl_->control, std::move(sockets),
      [impl = impl_.get(), name, member, size] { return impl->connect(name, member, size); });
}

}  // namespace rehearse::runtime
