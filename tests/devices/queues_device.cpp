// A device for tests that is as asynchronous as a GPU may be: run.device = "queues" in a build with
// tests. Every stream is a thread that sleeps for a random time before each op. All ops that meet
// other ranks run on one further thread, in the order in which they were issued. The address of
// its memory that leaves the bodies of ops cannot be read or written, and what a value held is
// overwritten when it dies. Vector clocks find two ops that use the same elements while nothing
// orders them, whether or not they collided in this run.
//
// REHEARSE_QUEUES_SEED=N chooses the sleeps. REHEARSE_QUEUES_DROP=RANK:OP:WAIT makes the device
// of a rank ignore that an op waits for another one. REHEARSE_QUEUES_STUCK=RANK:OP:STEP: the device
// of a rank never gets past an op, like a GPU that hangs.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/errors.h"
#include "runtime/device/device.h"
#include "tests/devices/detector.h"

namespace rehearse::runtime {
namespace {

/// The op that this thread runs now.
thread_local const RunningOp* current = nullptr;

/// One lock for all queues and events of a device, and what was reached under it.
struct Shared {
  std::mutex lock = {};
  std::condition_variable changed = {};
};

class QueueEvent : public Event {
 public:
  QueueEvent(Shared& shared, Id op) : op(op), shared_(shared) {}
  bool done() const override {
    const std::lock_guard guard(shared_.lock);
    return reached >= recorded;
  }
  void wait() const override {
    std::unique_lock guard(shared_.lock);
    const std::uint64_t target = recorded;
    shared_.changed.wait(guard, [&] { return reached >= target; });
  }
  double seconds_since(const Event& begin) const override {
    const std::lock_guard guard(shared_.lock);
    const auto passed = reached_at - static_cast<const QueueEvent&>(begin).reached_at;
    return std::chrono::duration<double>(passed).count();
  }

  const Id op;
  std::uint64_t recorded = 0, reached = 0;
  std::chrono::steady_clock::time_point reached_at = {};
  Clock before = {};  // the last record

 private:
  Shared& shared_;
};

struct Mark {
  QueueEvent* event;
  std::uint64_t number;
  bool waits;  // for the record of this number; false: it is the record
};

/// What a stream has to do, and how far it is.
struct Queue {
  std::string name = {};
  std::size_t index = 0;
  std::deque<std::variant<RunningOp, Mark>> items = {};
  std::vector<const QueueEvent*> waits = {};  // of what comes next
  Clock before = {};
  std::uint64_t launched = 0, at_meeting = 0, met = 0;
  bool busy = false, closed = false;
};

/// What goes wrong on purpose: in an op of a rank; `what` is the wait or the step.
struct Mishap {
  int rank = -1;
  Id op = none, what = none;
};

class QueuesDevice : public Device {
 public:
  QueuesDevice(int rank, unsigned seed, Mishap dropped, Mishap stuck)
      : rank_(rank), seed_(seed), dropped_(dropped), stuck_(stuck) {}
  ~QueuesDevice() override {
    {
      const std::lock_guard guard(shared_.lock);
      closed_ = true;
      shared_.changed.notify_all();
    }
    if (meetings_thread_.joinable()) meetings_thread_.join();
  }

  std::string name() const override { return fmt::format("queues (seed {})", seed_); }
  bool asynchronous() const override { return true; }
  std::unique_ptr<Stream> stream(const std::string& name) override;
  std::shared_ptr<Event> event(Id op) override { return std::make_shared<QueueEvent>(shared_, op); }
  std::shared_ptr<Event> timed_event(Id op) override { return event(op); }

  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
    const int file = memfd_create("device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0)
      throw BackendError(fmt::format("no memory file of {} bytes: {}", size, std::strerror(errno)));
    void* const inside = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void* const outside = mmap(nullptr, size, PROT_NONE, MAP_SHARED, file, 0);
    close(file);
    if (inside == MAP_FAILED || outside == MAP_FAILED)
      throw BackendError(fmt::format("no room for {} bytes: {}", size, std::strerror(errno)));
    auto* const address = static_cast<std::byte*>(inside);
    const std::lock_guard guard(shared_.lock);
    outside_of_[address] = {size, static_cast<std::byte*>(outside)};
    inside_of_[static_cast<std::byte*>(outside)] = {size, address};
    return {address, [this, size, outside](std::byte* at) {
              const std::lock_guard inner(shared_.lock);
              outside_of_.erase(at);
              inside_of_.erase(static_cast<std::byte*>(outside));
              munmap(at, size);
              munmap(outside, size);
            }};
  }
  std::byte* outside(std::byte* inside) const override { return other(outside_of_, inside); }
  std::byte* inside(std::byte* outside) const override { return other(inside_of_, outside); }
  void fetch(const std::byte* inside, std::byte* to, std::int64_t bytes) override {
    check_idle();
    std::memcpy(to, inside, static_cast<std::size_t>(bytes));
  }
  void store(std::byte* inside, const std::byte* from, std::int64_t bytes) override {
    check_idle();
    std::memcpy(inside, from, static_cast<std::size_t>(bytes));
  }

  void settled() override {
    check_idle();
    const std::lock_guard guard(shared_.lock);
    detector_.forget();
  }
  void check_body() const override {
    if (current == nullptr) throw ProgramError("the device's memory is used outside of an op");
  }
  void touch(const Touch& touch) override {
    const std::lock_guard guard(shared_.lock);
    detector_.look(touch, *current);
  }
  void used(const void*) override {}  // as on the CPU: values are freed inside of bodies
  void spoil(std::byte* bytes, std::int64_t count) override {
    std::memset(bytes, 0xff, static_cast<std::size_t>(count));  // NaN in each type
  }

 private:
  friend class QueueStream;
  using Addresses = std::map<std::byte*, std::pair<std::size_t, std::byte*>>;

  std::byte* other(const Addresses& addresses, std::byte* address) const {
    const std::lock_guard guard(shared_.lock);
    auto found = addresses.upper_bound(address);
    if (found == addresses.begin()) throw ProgramError("no memory of this device");
    --found;
    const std::ptrdiff_t within = address - found->first;
    if (within >= static_cast<std::ptrdiff_t>(found->second.first))
      throw ProgramError("no memory of this device");
    return found->second.second + within;
  }
  void check_idle() const {
    const std::lock_guard guard(shared_.lock);
    for (const Queue* queue : queues_)
      if (!queue->items.empty() || queue->busy)
        throw ProgramError(
            fmt::format("the host uses the device's memory while lane {} runs", queue->name));
  }
  static void run(const RunningOp& op) {
    if (!op->host) current = &op;
    op->body.run(op->body.self, op->body);
    current = nullptr;
  }
  void run_meetings();

  mutable Shared shared_ = {};
  int rank_;
  unsigned seed_;
  Mishap dropped_, stuck_;
  std::vector<Queue*> queues_ = {};
  std::size_t streams_made_ = 0;
  Detector detector_ = {};
  Addresses outside_of_ = {}, inside_of_ = {};
  std::deque<std::pair<Queue*, RunningOp>> meetings_ = {};
  std::thread meetings_thread_ = {};
  bool closed_ = false;
};

class QueueStream : public Stream {
 public:
  QueueStream(QueuesDevice& device, const std::string& name) : device_(device) {
    queue_.name = name;
    {
      const std::lock_guard guard(device.shared_.lock);
      queue_.index = device.streams_made_++;
      device.queues_.push_back(&queue_);
    }
    thread_ = std::thread([this] { work(); });
  }
  ~QueueStream() override {
    {
      const std::lock_guard guard(device_.shared_.lock);
      queue_.closed = true;
      device_.shared_.changed.notify_all();
    }
    thread_.join();
    const std::lock_guard guard(device_.shared_.lock);
    std::erase(device_.queues_, &queue_);
  }

  void launch(const Body& body) override { push(body, false); }
  void call(const Body& body) override { push(body, true); }
  void push(const Body& body, bool host) {
    const std::lock_guard guard(device_.shared_.lock);
    add_waits(body.op);
    if (queue_.before.size() <= queue_.index) queue_.before.resize(queue_.index + 1);
    queue_.before[queue_.index] = ++queue_.launched;
    const auto op = std::make_shared<const Running>(
        Running{body, queue_.index, queue_.launched, queue_.before, host});
    queue_.items.emplace_back(op);
    if (body.meets) {
      device_.meetings_.emplace_back(&queue_, op);
      if (!device_.meetings_thread_.joinable())
        device_.meetings_thread_ = std::thread([this] { device_.run_meetings(); });
    }
    device_.shared_.changed.notify_all();
  }
  void record(Event& event) override {
    const std::lock_guard guard(device_.shared_.lock);
    auto& of = static_cast<QueueEvent&>(event);
    add_waits(of.op);
    of.before = queue_.before;
    queue_.items.emplace_back(Mark{&of, ++of.recorded, false});
    device_.shared_.changed.notify_all();
  }
  void wait(const Event& event) override {
    queue_.waits.push_back(&static_cast<const QueueEvent&>(event));
  }
  void synchronize() override {
    std::unique_lock guard(device_.shared_.lock);
    device_.shared_.changed.wait(guard, [&] { return queue_.items.empty() && !queue_.busy; });
  }

 private:
  /// What `op`, which comes next, waits for.
  void add_waits(Id op) {
    for (const QueueEvent* event : std::exchange(queue_.waits, {})) {
      const Mishap& dropped = device_.dropped_;
      if (dropped.rank == device_.rank_ && dropped.op == op && dropped.what == event->op) continue;
      merge(queue_.before, event->before);
      queue_.items.emplace_back(Mark{const_cast<QueueEvent*>(event), event->recorded, true});
    }
  }
  void work() {
    std::seed_seq seeds{device_.seed_, static_cast<unsigned>(device_.rank_),
                        static_cast<unsigned>(queue_.index)};
    std::mt19937 random(seeds);
    std::unique_lock guard(device_.shared_.lock);
    while (true) {
      device_.shared_.changed.wait(guard, [&] { return queue_.closed || !queue_.items.empty(); });
      if (queue_.items.empty()) return;
      const auto item = std::move(queue_.items.front());
      queue_.items.pop_front();
      queue_.busy = true;
      if (const Mark* mark = std::get_if<Mark>(&item)) {
        if (mark->waits)
          device_.shared_.changed.wait(guard, [&] { return mark->event->reached >= mark->number; });
        else
          mark->event->reached = mark->number,
          mark->event->reached_at = std::chrono::steady_clock::now();
      } else {
        guard.unlock();
        sleep(random());
        const Body& body = std::get<RunningOp>(item)->body;
        const Mishap& stuck = device_.stuck_;
        while (stuck.rank == device_.rank_ && stuck.op == body.op && stuck.what == body.step)
          pause();
        run(std::get<RunningOp>(item));
        guard.lock();
      }
      queue_.busy = false;
      device_.shared_.changed.notify_all();
    }
  }
  /// Half of all ops begin at once; of the others some come much later.
  static void sleep(std::uint32_t random) {
    if (random % 2 == 0) return;
    const std::uint32_t most = random % 64 == 1 ? 2000 : 100;
    std::this_thread::sleep_for(std::chrono::microseconds((random >> 8U) % most));
  }
  void run(const RunningOp& op) {
    if (!op->body.meets) return QueuesDevice::run(op);
    std::unique_lock guard(device_.shared_.lock);
    queue_.at_meeting = op->number;
    device_.shared_.changed.notify_all();
    device_.shared_.changed.wait(guard, [&] { return queue_.met == op->number; });
  }

  QueuesDevice& device_;
  Queue queue_ = {};
  std::thread thread_ = {};
};

std::unique_ptr<Stream> QueuesDevice::stream(const std::string& name) {
  return std::make_unique<QueueStream>(*this, name);
}

void QueuesDevice::run_meetings() {
  std::unique_lock guard(shared_.lock);
  while (true) {
    shared_.changed.wait(guard, [&] { return closed_ || !meetings_.empty(); });
    if (meetings_.empty()) return;
    const auto [queue, op] = meetings_.front();
    meetings_.pop_front();
    shared_.changed.wait(guard, [&] { return queue->at_meeting == op->number; });
    guard.unlock();
    run(op);
    guard.lock();
    queue->met = op->number;
    shared_.changed.notify_all();
  }
}

unsigned seed_from_environment() {
  const char* const text = std::getenv("REHEARSE_QUEUES_SEED");
  return text == nullptr ? 1 : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

Mishap mishap_from_environment(const char* variable, const char* form) {
  Mishap mishap;
  if (const char* const text = std::getenv(variable))
    if (std::sscanf(text, "%d:%u:%u", &mishap.rank, &mishap.op, &mishap.what) != 3)
      throw InputError(fmt::format("{}={}: {}", variable, text, form));
  return mishap;
}

}  // namespace
}  // namespace rehearse::runtime

extern "C" rehearse::runtime::Device* rehearse_device(int version, int rank,
                                                      rehearse::runtime::Control* /*control*/,
                                                      std::string* error) {
  try {
    if (version != rehearse::runtime::device_version) {
      *error = "the device queues belongs to another build";
      return nullptr;
    }
    using rehearse::runtime::mishap_from_environment;
    return new rehearse::runtime::QueuesDevice(
        rank, rehearse::runtime::seed_from_environment(),
        mishap_from_environment("REHEARSE_QUEUES_DROP", "RANK:OP:WAIT"),
        mishap_from_environment("REHEARSE_QUEUES_STUCK", "RANK:OP:STEP"));
  } catch (const std::exception& failure) {
    *error = failure.what();
    return nullptr;
  }
}
