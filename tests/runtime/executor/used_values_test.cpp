// An allocator that serves streams gives memory out again as soon as its last handle goes, which
// may be before another stream has read it. So bodies say of all memory that LibTorch gave them
// that they use it (runtime::Device::used). Runs the ops of every method, which use their operands
// and do no more, and looks.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "engine/methods/strategy.h"
#include "runtime/device/cpu_device.h"
#include "runtime/executor/lanes/lane_runner.h"
#include "runtime/executor/rank_memory.h"
#include "tests/methods.h"
#include "tests/runtime/conformance.h"

namespace rehearse::runtime {
namespace {

thread_local std::set<const void*> used_here;  // by the running body

class LoggingStream : public Stream {
 public:
  void launch(const Body& body) override {
    used_here.clear();
    body.run(body.self, body);
  }
  void call(const Body& body) override { body.run(body.self, body); }
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
};

/// The CPU, which keeps what the running body says that it uses.
class LoggingDevice : public Device {
 public:
  std::string name() const override { return "logging"; }
  bool asynchronous() const override { return false; }
  std::unique_ptr<Stream> stream(const std::string&) override {
    return std::make_unique<LoggingStream>();
  }
  std::shared_ptr<Event> event(Id op) override { return cpu_->event(op); }
  std::shared_ptr<Event> timed_event(Id op) override { return cpu_->timed_event(op); }
  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override { return cpu_->allocate(bytes); }
  std::byte* outside(std::byte* inside) const override { return inside; }
  std::byte* inside(std::byte* outside) const override { return outside; }
  void fetch(const std::byte* inside, std::byte* to, std::int64_t bytes) override {
    cpu_->fetch(inside, to, bytes);
  }
  void store(std::byte* inside, const std::byte* from, std::int64_t bytes) override {
    cpu_->store(inside, from, bytes);
  }
  void settled() override {}
  void check_body() const override {}
  void touch(const Touch&) override {}
  void used(const void* memory) override { used_here.insert(memory); }
  void spoil(std::byte*, std::int64_t) override {}

 private:
  std::unique_ptr<Device> cpu_ = cpu_device();
};

/// The ops of one role. Counts uses of values on another lane than the one that made them.
class Uses {
 public:
  Uses(const link::LinkedProgram& linked, Id role)
      : role_(linked.program.roles[role]),
        memory_(device_, linked.program, role, role_.ranks.front()),
        operands_(role_.ops.size()),
        dies_(role_.ops.size()) {
    for (Id op = 0; op < role_.ops.size(); ++op) {
      for (const program::Ref& ref : role_.ops[op].refs)
        operands_[op].push_back(memory_.operand(ref));
      for (const program::Ref& ref : linked.roles[role].ops[op].dies)
        memory_.add_last_user(dies_[op].emplace_back(memory_.operand(ref)));
    }
    memory_.drop_values();
    LaneRunner runner(device_, role_.ops.size(), lanes_of(linked, role), 0,
                      {.execute = [this](Id op, std::int64_t step) {
                        if (role_.ops[op].when.due(step))
                          for (const Operand& operand : operands_[op]) use(op, operand, step);
                        for (const Operand& dying : dies_[op]) memory_.release(dying, step);
                        return true;
                      }});
    runner.run(0, 3);
  }

  std::size_t on_other_lanes = 0;

 private:
  /// What the operand's storage holds, if LibTorch gave the memory.
  at::Tensor tensor_of(const Operand& operand, std::int64_t step) {
    const bool reads = operand.mode == program::Mode::read;
    if (operand.slot != program::Slot::saved) {
      const at::Tensor tensor = reads ? memory_.read(operand, step) : memory_.write(operand, step);
      return operand.value ? tensor : at::Tensor();
    }
    models::Saved& saved = memory_.saved(operand, reads ? step : step + operand.age);
    if (reads) return saved.tensors.empty() ? at::Tensor() : saved.tensors.front();
    saved.tensors = {at::empty({16})};
    used_here.insert(saved.tensors.front().storage().data());  // this body made it
    return saved.tensors.front();
  }
  void use(Id op, const Operand& operand, std::int64_t step) {
    const at::Tensor tensor = tensor_of(operand, step);
    if (!tensor.defined()) return;
    const void* const memory = tensor.storage().data();
    EXPECT_TRUE(used_here.contains(memory)) << "op " << op << ", storage " << operand.storage;
    const std::lock_guard guard(lock_);
    if (operand.mode == program::Mode::write)
      made_on_[memory] = role_.ops[op].lane;
    else
      on_other_lanes += made_on_[memory] != role_.ops[op].lane ? 1 : 0;
  }

  const program::Role& role_;
  LoggingDevice device_ = {};
  RankMemory memory_;
  std::vector<std::vector<Operand>> operands_, dies_;
  std::mutex lock_ = {};
  std::map<const void*, Id> made_on_ = {};  // lane, by memory
};

class UsedValues : public testing::TestWithParam<std::string> {};

TEST_P(UsedValues, AreNamedByEachBodyThatUsesThem) {
  const link::LinkedProgram linked =
      link::link(program_of(conformance_job(smallest_plan(GetParam()), "", 1)));
  std::size_t on_other_lanes = 0;
  for (Id role = 0; role < linked.program.roles.size(); ++role)
    on_other_lanes += Uses(linked, role).on_other_lanes;
  if (GetParam() == "1f1b" || GetParam() == "zero3") {
    EXPECT_GT(on_other_lanes, 0U);
  }
}
INSTANTIATE_TEST_SUITE_P(All, UsedValues, testing::ValuesIn(test::all_methods()),
                         test::method_name);

}  // namespace
}  // namespace rehearse::runtime
