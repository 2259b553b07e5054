#include "runtime/executor/executor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <thread>

#include "engine/base/errors.h"
#include "models/block.h"
#include "runtime/device/accelerator.h"
#include "runtime/device/cpu_device.h"
#include "runtime/executor/fault_injector.h"
#include "runtime/executor/operations/forward_slice.h"
#include "runtime/executor/operations/operations.h"
#include "runtime/executor/rank_memory.h"
#include "runtime/kernels/optimizer.h"

namespace rehearse::runtime {
namespace {

bool waits_for_others(const program::Work& work) {
  return std::visit(program::overloaded{
                        [](const program::Compute&) { return false; },
                        [](const program::Kernel&) { return false; },
                        [](const program::Update&) { return false; },
                        [](const program::Collective&) { return true; },
                        [](const program::Send&) { return true; },
                        [](const program::Recv&) { return true; },
                        [](const program::Put&) { return true; },
                        [](const program::Take&) { return true; },
                        [](const program::Copy&) { return false; },
                        // The checkpoint is complete when all ranks have written their parts.
                        [](const program::Save&) { return true; },
                        [](const program::Pause&) { return false; },
                        [](const program::Issue&) { return false; },
                    },
                    work);
}

/// The lane of the role's first compute op; for a role without one (a parameter server), the lane
/// of its first op.
std::size_t compute_lane(const program::Role& role) {
  for (const program::Op& op : role.ops)
    if (std::holds_alternative<program::Compute>(op.work)) return op.lane;
  return role.ops.empty() ? 0 : role.ops.front().lane;
}

}  // namespace

struct Executor::Impl {
  Impl(const ExecutorContext& context, const std::vector<std::byte*>& given)
      : c(context),
        cpu(context.device == nullptr ? cpu_device() : nullptr),
        device(cpu != nullptr ? *cpu : *context.device),
        role_id(c.linked.role_of.at(c.rank)),
        role(c.linked.program.roles[role_id]),
        maps(tensors::map_tensors(c.linked, c.model)),
        memory(device, c.linked.program, role_id, c.rank, given),
        operations(c.linked, c.model, c.train, c.plan.optimizer, c.plan.schedule.global_batch,
                   c.rank, maps[c.rank], c.network, memory, c.wiring),
        main_lane(compute_lane(role)) {
    std::vector<TaskLane> lanes = lanes_of(c.linked, role_id);
    attach_progress(lanes);
    training = std::make_unique<LaneRunner>(
        device, role.ops.size(), std::move(lanes), main_lane,
        LaneRunner::Hooks{
            .stage = [this](Id op, std::int64_t step) { operations.stage(op, step); },
            .host = [this](Id op, std::int64_t step) { host(op, step); },
            .execute = [this](Id op, std::int64_t step) { return execute(op, step); },
            .begin_step =
                [this](std::int64_t step) {
                  return c.control.begin_step(role.free_running ? run_first : step);
                },
            .stepped =
                [this](std::int64_t step) {
                  if (on_step != nullptr) (*on_step)(step, operations.take_loss(step));
                },
            .failed = [this](const std::string& what) { c.control.fail(what); },
        },
        turns_of(c.linked, role_id));
    if (c.faults != nullptr)
      c.faults->on_corruption([this](double factor, std::int64_t step) { corrupt(factor, step); });
    slice = forward_slice(c.linked)[role_id];
    std::vector<TaskLane> forward = lanes_of(c.linked, role_id, slice);
    attach_progress(forward);
    evaluation = std::make_unique<LaneRunner>(
        device, role.ops.size(), std::move(forward), main_lane,
        LaneRunner::Hooks{
            .stage = [this](Id op, std::int64_t step) { operations.stage(op, step); },
            .host = [this](Id op, std::int64_t step) { host(op, step); },
            .execute = [this](Id op, std::int64_t step) { return execute(op, step); },
            .begin_step = {},
            .stepped = {},
            .failed = [this](const std::string& what) { c.control.fail(what); },
        },
        turns_of(c.linked, role_id, slice));
    if (device.asynchronous()) beats = c.control.before_beats([this] { tell_places(); });
  }

  void attach_progress(std::vector<TaskLane>& lanes) {
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      if (told.size() <= i) {
        told.push_back(&c.control.lane(lanes[i].name));
        progress.push_back(device.asynchronous() ? &hosts.emplace_back() : told.back());
      }
      lanes[i].progress = progress[i];
    }
  }

  /// Enters where the streams are: the host may have issued more, and then waits.
  void tell_places() noexcept {
    for (std::size_t lane = 0; lane < told.size(); ++lane) {
      std::optional<LaneRunner::Place> at;
      try {
        at = training->place(lane);
        if (!at) at = evaluation->place(lane);
      } catch (const std::exception&) {
        continue;  // the device has failed; whoever waits for it says so
      }
      // At work on the same op: the host holds it back, or is a part of it.
      LaneProgress at_work;
      if (at) at_work.enter(LaneState::working, at->step, at->op);
      if (!at || progress[lane]->packed() == at_work.packed())
        told[lane]->follow(*progress[lane]);
      else if (at->dependent)
        told[lane]->enter(LaneState::dependent, at->step, at->op);
      else
        told[lane]->enter(
            waits_for_others(role.ops[at->op].work) ? LaneState::communicating : LaneState::working,
            at->step, at->op);
    }
  }

  bool execute(Id op, std::int64_t step) {
    // LibTorch keeps this by thread, and lanes are threads. There is no graph, so nothing of an op
    // goes through autograd.
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    if (on_host(role.ops[op].work)) return operations.execute(op, step);
    // What is slowed down by a factor of its time must be timed, so the host waits for it.
    Accelerator* const timed =
        c.faults != nullptr || (c.disturber != nullptr && !c.disturber->quiet_compute())
            ? device.accelerator()
            : nullptr;
    if (timed != nullptr) timed->finish();
    return observed(op, step, [&] {
      const bool goes_on = operations.execute(op, step);
      if (timed != nullptr) timed->finish();
      return goes_on;
    });
  }

  void host(Id op, std::int64_t step) {
    observed(op, step, [&] {
      operations.host(op, step);
      return true;
    });
  }

  /// Runs a part of an op while others can see that it runs, with the faults and slowdowns that
  /// strike it.
  template <class F>
  bool observed(Id op, std::int64_t step, const F& part) {
    const program::Op& what = role.ops[op];
    const bool others = waits_for_others(what.work);
    if (c.faults != nullptr) {
      // A rank that does not come to a meeting is at work on something else.
      progress[what.lane]->enter(LaneState::working, step, op);
      c.faults->strike_before_op(what.work, step);
    }
    progress[what.lane]->enter(others ? LaneState::communicating : LaneState::working, step, op);
    const auto began = std::chrono::steady_clock::now();
    const bool goes_on = part();
    // A sleep can only make an op slower, so factors below 1 have no effect.
    double factor = others || c.disturber == nullptr
                        ? 1
                        : c.disturber->compute_factor(c.rank, static_cast<int>(step), op);
    if (c.faults != nullptr && !others) factor *= c.faults->slowdown();
    if (factor > 1)
      std::this_thread::sleep_for((factor - 1) * (std::chrono::steady_clock::now() - began));
    if (device.asynchronous()) progress[what.lane]->enter(LaneState::dependent, step, op);
    return goes_on;
  }

  void clear();
  void initialise(const std::function<void()>& alive);
  /// A weight of this rank becomes wrong: one that its Update writes, if it has any.
  void corrupt(double factor, std::int64_t step);

  ExecutorContext c;
  std::unique_ptr<Device> cpu;
  Device& device;
  Id role_id;
  const program::Role& role;
  std::vector<tensors::RankMap> maps;
  RankMemory memory;
  Operations operations;
  std::size_t main_lane;
  std::optional<std::int64_t> own_step = {};  // next step of a free-running role
  std::int64_t run_first = 0;                 // the first step of this `run`
  std::vector<bool> slice = {};               // [op]: whether evaluation runs it
  // By lane: what the control plane tells others, and where this rank's threads are in it. The two
  // are one unless streams run behind the host.
  std::vector<LaneProgress*> told = {}, progress = {};
  std::deque<LaneProgress> hosts = {};
  std::unique_ptr<LaneRunner> training, evaluation;
  const std::function<void(std::int64_t, const StepLoss&)>* on_step = nullptr;
  std::shared_ptr<void> beats = {};  // goes first: it uses the others
};

void Executor::Impl::corrupt(double factor, std::int64_t step) {
  const program::Ref* weights = nullptr;
  tensors::Extent most;
  for (const bool updates : {true, false}) {  // of a rank without updates, what its passes read
    for (const program::Op& op : role.ops) {
      if (updates != std::holds_alternative<program::Update>(op.work)) continue;
      const program::Ref* ref = find(op, program::Slot::master);
      if (ref == nullptr) ref = find(op, program::Slot::param);
      if (ref == nullptr ||
          role.storages[role.views[ref->view].storage].life == program::Life::value)
        continue;
      const tensors::Extent extent = tensors::extent_of(c.linked.program, role, ref->view, c.rank);
      if (extent.size() > most.size()) weights = ref, most = extent;
    }
    if (weights != nullptr) break;
  }
  if (weights == nullptr) return;
  const at::Tensor number = memory.state(role.views[weights->view].storage, step, 1)
                                .narrow(0, most.begin + most.size() / 2, 1);
  if (factor != 1) {
    number.mul_(factor);
  } else {  // the highest bit of the exponent
    const bool half = number.element_size() == 2;
    number.view(half ? at::kShort : at::kInt).bitwise_xor_(half ? 0x4000 : 0x4000'0000);
  }
}

void Executor::Impl::clear() {
  for (Id s = 0; s < role.storages.size(); ++s) {
    if (role.storages[s].life == program::Life::value) continue;
    for (int age = 1; age <= role.storages[s].versions; ++age)
      memory.edit(s, 0, age, [&](std::span<std::byte> bytes) {
        std::ranges::fill(bytes, std::byte{0});
        if (maps[c.rank].storages[s].kind == tensors::StorageKind::scale)
          std::memcpy(bytes.data(), &initial_loss_scale, sizeof initial_loss_scale);
      });
  }
}

void Executor::Impl::initialise(const std::function<void()>& alive) {
  clear();
  const tensors::RankMap& map = maps[c.rank];
  std::map<Id, std::vector<std::pair<Id, tensors::ParamPiece>>> by_group;  // (storage, piece)s
  for (Id s = 0; s < role.storages.size(); ++s) {
    if (role.storages[s].life == program::Life::value) continue;
    const tensors::StorageKind kind = map.storages[s].kind;
    if (tensors::is_weight(kind))
      for (const tensors::ParamPiece& piece : map.storages[s].pieces)
        by_group[piece.group].emplace_back(s, piece);
  }
  for (const auto& [group, places] : by_group) {
    if (alive) alive();
    const at::Tensor flat =
        at::empty({elements_of(c.model.groups[group], map.tp_size)}, at::kFloat);
    rehearse::models::initialise(c.model, group, map.tp_size, map.tp_rank, c.train.seed, flat);
    for (const auto& [storage, piece] : places)
      for (int age = 1; age <= role.storages[storage].versions; ++age)
        memory.edit(storage, 0, age, [&](std::span<std::byte> bytes) {
          const program::Storage& of = role.storages[storage];
          at::from_blob(bytes.data(), {of.elements}, at::TensorOptions(scalar_type(of.dtype)))
              .narrow(0, piece.begin, piece.end - piece.begin)
              .copy_(flat.narrow(0, piece.offset, piece.end - piece.begin));
        });
  }
}

Executor::Executor(const ExecutorContext& context, const std::vector<std::byte*>& given)
    : impl_(std::make_unique<Impl>(context, given)) {}
Executor::~Executor() = default;

void Executor::initialise(const std::function<void()>& alive) {
  impl_->initialise(alive);
  impl_->own_step.reset();
  impl_->operations.skipped_updates(0);
}
std::optional<std::int64_t> Executor::own_step() const { return impl_->own_step; }
void Executor::own_step(std::int64_t step) {
  if (impl_->role.free_running) impl_->own_step = step;
}
void Executor::clear() { impl_->clear(); }
double Executor::compute_seconds() const {
  return impl_->training->computed_seconds() + impl_->evaluation->computed_seconds();
}
const Wiring& Executor::wiring() const { return impl_->c.wiring; }

std::int64_t Executor::run(std::int64_t first, std::int64_t last,
                           const std::function<void(std::int64_t step, const StepLoss&)>& on_step) {
  impl_->on_step = on_step ? &on_step : nullptr;
  impl_->run_first = first;
  // Knowing of an early end (last_step) later than at the step's begin changes nothing: the vote
  // leaves a step that no rank has begun.
  impl_->operations.begin_run(
      {.data = &impl_->c.data, .ends_after = [this, last](std::int64_t step) {
         return step + 1 == last || step == impl_->c.control.last_step();
       }});
  const std::int64_t end = impl_->training->run(own_step().value_or(first), last);
  own_step(end);
  impl_->operations.end_run();
  impl_->on_step = nullptr;
  return end;
}

double Executor::evaluate(std::int64_t step, std::int64_t batches, const Data& data) {
  double sum = 0;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    impl_->operations.begin_run({.data = &data, .training = false, .evaluation = batch});
    impl_->evaluation->run(step, step + 1);
    impl_->memory.drop_values();
    sum += impl_->operations.take_loss(step).sum;
  }
  impl_->memory.drop_values();
  return counts() ? sum : 0;
}

bool Executor::counts() const { return impl_->maps[impl_->c.rank].tp_rank == 0; }
const std::vector<tensors::RankMap>& Executor::maps() const { return impl_->maps; }
const program::Role& Executor::role() const { return impl_->role; }

HostBytes Executor::state(Id storage, std::int64_t step, int age) const {
  return impl_->memory.host(storage, step, age);
}
void Executor::edit_state(Id storage, std::int64_t step, int age,
                          const std::function<void(std::span<std::byte>)>& change) {
  impl_->memory.edit(storage, step, age, change);
}
std::byte* Executor::address(Id storage, std::int64_t step, int age) const {
  return impl_->memory.address(storage, step, age);
}

std::int64_t Executor::skipped_updates() const { return impl_->operations.skipped_updates(); }
void Executor::skipped_updates(std::int64_t count) { impl_->operations.skipped_updates(count); }

std::span<const std::byte> Executor::snapshot(Id storage, int index) const {
  return impl_->memory.snapshot(storage, index);
}
void Executor::on_save(std::function<void(std::int64_t, std::int64_t)> save) {
  impl_->operations.on_save(std::move(save));
}

void Executor::keep_stamps(std::size_t ops_per_lane) { impl_->training->keep_stamps(ops_per_lane); }
const std::vector<std::vector<OpTimes>>& Executor::stamps() const {
  return impl_->training->stamps();
}
std::vector<std::string> Executor::host_work() const { return impl_->operations.host_work(); }
std::int64_t Executor::bytes_sent() const { return impl_->operations.bytes_sent(); }
std::int64_t Executor::scratch_bytes() const { return impl_->operations.scratch_bytes(); }

}  // namespace rehearse::runtime
