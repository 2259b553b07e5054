#include "runtime/device/cpu_device.h"

#include <c10/core/CPUAllocator.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

using Clock = std::chrono::steady_clock;

/// What it stands for has ended when it is recorded.
class CpuEvent : public Event {
 public:
  bool done() const override { return true; }
  void wait() const override {}
  double seconds_since(const Event&) const override {
    throw ProgramError("an event without times was asked for its time");
  }
  virtual void reach() {}
};

class TimedCpuEvent : public CpuEvent {
 public:
  double seconds_since(const Event& begin) const override {
    const auto passed = reached_ - static_cast<const TimedCpuEvent&>(begin).reached_;
    return std::chrono::duration<double>(passed).count();
  }
  void reach() override { reached_ = Clock::now(); }

 private:
  Clock::time_point reached_ = {};
};

class CpuStream : public Stream {
 public:
  void launch(const Body& body) override { body.run(body.self, body); }
  void call(const Body& body) override { launch(body); }
  void record(Event& event) override { static_cast<CpuEvent&>(event).reach(); }
  void wait(const Event&) override {}
  void synchronize() override {}
};

class CpuDevice : public Device {
 public:
  std::string name() const override { return "cpu"; }
  bool asynchronous() const override { return false; }
  std::unique_ptr<Stream> stream(const std::string&) override {
    return std::make_unique<CpuStream>();
  }
  std::shared_ptr<Event> event(Id) override { return event_; }
  std::shared_ptr<Event> timed_event(Id) override { return std::make_shared<TimedCpuEvent>(); }

  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    auto held = std::make_shared<c10::DataPtr>(
        c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(bytes)));
    auto* const address = static_cast<std::byte*>(held->get());
    if (bytes > 0) std::memset(address, 0, static_cast<std::size_t>(bytes));
    return {std::move(held), address};
  }
  std::byte* outside(std::byte* inside) const override { return inside; }
  std::byte* inside(std::byte* outside) const override { return outside; }
  void fetch(const std::byte* inside, std::byte* to, std::int64_t bytes) override {
    std::memcpy(to, inside, static_cast<std::size_t>(bytes));
  }
  void store(std::byte* inside, const std::byte* from, std::int64_t bytes) override {
    std::memcpy(inside, from, static_cast<std::size_t>(bytes));
  }
  void settled() override {}
  void check_body() const override {}
  void touch(const Touch&) override {}
  void used(const void*) override {}  // freed by the last body that uses it, which has ended
  void spoil(std::byte*, std::int64_t) override {}

 private:
  std::shared_ptr<Event> event_ = std::make_shared<CpuEvent>();  // of all ops
};

}  // namespace

std::unique_ptr<Device> cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace rehearse::runtime
