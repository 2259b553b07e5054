#include "runtime/executor/lanes/lane_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

namespace rehearse::runtime {
namespace {

// Events of so many steps are kept for each op. A lane that waits for a step whose event already
// stands for a later one waits longer than it must, for work that has been issued.
constexpr std::int64_t events_kept = 2 * run_ahead;

// CUDA tells the time between two events as a float: after this many seconds a rounded microsecond.
constexpr double longest_epoch = 10;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The last op of a step on a lane: ops with the largest shift run last, in the order of the lane.
Id last_of(const TaskLane& lane) {
  Id last = none;
  int shift = -1;
  for (const Task& task : lane.tasks)
    if (task.shift >= shift) last = task.op, shift = task.shift;
  return last;
}

}  // namespace

LaneRunner::LaneRunner(Device& device, std::size_t ops, std::vector<TaskLane> lanes,
                       std::size_t main_lane, Hooks hooks, std::vector<Turn> turns)
    : device_(device),
      lanes_(std::move(lanes)),
      main_lane_(main_lane),
      hooks_(std::move(hooks)),
      ops_(ops),
      // Where an op runs while it is issued, lanes must not wait for each other's ops.
      turnstile_(device.asynchronous() ? std::move(turns) : std::vector<Turn>()),
      issued_(std::make_unique<IssueCounter[]>(ops)),
      epochs_(lanes_.size()),
      stamps_(lanes_.size()) {
  if (main_lane_ < lanes_.size()) step_ends_.push_back(last_of(lanes_[main_lane_]));
  // By arrival, the main lane may have ops of a step to run after its last one, so it waits for
  // none.
  if (main_lane_ < lanes_.size() && lanes_[main_lane_].order == program::Order::in_order)
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
      for (const Task& task : lanes_[lane].tasks)
        if (task.tells && lane != main_lane_) step_ends_.push_back(task.op);
  for (const TaskLane& lane : lanes_) {
    pulses_ |= lane.order == program::Order::arrival;
    streams_.push_back(device.stream(lane.name));
    timed_.emplace_back(lane.tasks.size() * events_kept);
    under_way_.emplace_back(lane, ops, run_ahead);
  }
  events_.reserve(ops * events_kept);
  for (std::size_t i = 0; i < ops * events_kept; ++i)
    events_.push_back(device.event(static_cast<Id>(i / events_kept)));
  spans_.resize(events_.size());
  for (const TaskLane& lane : lanes_)
    for (const Task& task : lane.tasks)
      if (task.computes) make_spans(task.op);
}

void LaneRunner::make_spans(Id op) {
  for (std::int64_t step = 0; step < events_kept; ++step)
    if (Span& of = span(op, step); of.begin == nullptr)
      of = {.begin = device_.timed_event(op), .end = device_.timed_event(op)};
}

LaneRunner::Span& LaneRunner::span(Id op, std::int64_t step) {
  return spans_[op * events_kept + static_cast<std::size_t>(step % events_kept)];
}

Event& LaneRunner::event(Id op, std::int64_t step) const {
  return *events_[op * events_kept + static_cast<std::size_t>(step % events_kept)];
}

void LaneRunner::keep_stamps(std::size_t ops) {
  for (std::vector<OpTimes>& lane : stamps_) {
    lane.clear();
    lane.shrink_to_fit();
    lane.reserve(ops);
  }
  if (ops == 0) return;
  for (const TaskLane& lane : lanes_)
    for (const Task& task : lane.tasks) make_spans(task.op);
}

double LaneRunner::computed_seconds() const { return 1e-9 * static_cast<double>(computed_); }

std::int64_t LaneRunner::run(std::int64_t first, std::int64_t last) {
  for (std::size_t i = 0; i < ops_; ++i) issued_[i].restart();
  turnstile_.begin_run(first, last);
  ended_.clear();
  first_ = first;
  opened_ = first;
  end_ = last;
  stopped_ = false;
  error_ = nullptr;
  for (boost::circular_buffer<Issued>& lane : timed_) lane.clear();
  if (keeps_stamps(main_lane_)) mark_epoch();
  std::vector<std::thread> threads;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
    if (lane != main_lane_ && !lanes_[lane].tasks.empty())
      threads.emplace_back([this, lane] { run_lane(lane); });
  run_lane(main_lane_);
  for (std::thread& thread : threads) thread.join();
  device_.settled();
  if (error_) std::rethrow_exception(error_);
  return end_;
}

template <class F>
void LaneRunner::guard(const F& part) {
  try {
    part();
  } catch (const std::exception& error) {
    stop(std::current_exception(), error.what());
  } catch (...) {
    stop(std::current_exception(), "unknown error");
  }
}

void LaneRunner::run_lane(std::size_t lane) {
  bool finished = false;
  guard([&] {
    const bool in_order = lanes_[lane].order == program::Order::in_order;
    finished = in_order ? run_in_order(lane) : run_by_arrival(lane);
    if (lane == main_lane_) deliver(0);
  });
  guard([&] { streams_[lane]->synchronize(); });
  under_way_[lane].clear();
  if (!stopped_) guard([&] { read_times(lane); });
  if (LaneProgress* progress = lanes_[lane].progress; progress != nullptr && finished && !stopped_)
    progress->enter(LaneState::idle, end_, 0);
}

bool LaneRunner::run_in_order(std::size_t index) {
  const TaskLane& lane = lanes_[index];
  int max_shift = 0;
  for (const Task& task : lane.tasks) max_shift = std::max(max_shift, task.shift);
  for (std::int64_t iteration = first_; iteration - max_shift < end_; ++iteration)
    for (const Task& task : lane.tasks) {
      const std::int64_t step = iteration - task.shift;
      if (step < first_) continue;
      if (!open(step)) {
        if (stopped_) return false;
        continue;
      }
      if (!satisfied(task, step)) wait_for(lane, task, step);
      if (stopped_) return false;
      if (step < end_) perform(index, task, step);  // else what it waited for has ended the run
    }
  return true;
}

bool LaneRunner::run_by_arrival(std::size_t index) {
  const TaskLane& lane = lanes_[index];
  std::vector<std::int64_t> next(lane.tasks.size(), first_);  // the step each task serves next
  while (true) {
    const std::int32_t pulse = pulse_.load(std::memory_order_acquire);
    bool any_left = false, any_ran = false;
    for (std::size_t i = 0; i < lane.tasks.size() && !any_ran; ++i) {
      if (!open(next[i])) continue;
      any_left = true;
      const Task& task = lane.tasks[i];
      if (!satisfied(task, next[i]) || next[i] >= end_) continue;
      perform(index, task, next[i]++);
      any_ran = true;
    }
    if (!any_left) return true;
    if (any_ran) continue;
    if (stopped_) return false;
    pulse_.wait(pulse, std::memory_order_acquire);
  }
}

void LaneRunner::perform(std::size_t lane, const Task& task, std::int64_t step) {
  Stream& stream = *streams_[lane];
  if (step - run_ahead >= first_) event(task.op, step - run_ahead).wait();
  read_times(lane);
  for (const link::Wait& wait : task.waits)
    if (step - wait.lag >= first_) stream.wait(event(wait.op, step - wait.lag));
  if (hooks_.stage) hooks_.stage(task.op, step);
  if (task.meets && !turnstile_.enter(task.op, step)) return;  // the run ends before this step
  Event& end = event(task.op, step);
  const Span* const timed = task.computes || keeps_stamps(lane) ? &span(task.op, step) : nullptr;
  if (timed != nullptr) stream.record(*timed->begin);
  Body body{.run = &LaneRunner::run_host,
            .self = this,
            .lane = static_cast<Id>(lane),
            .op = task.op,
            .step = step,
            .meets = task.meets};
  if (task.host && hooks_.host) stream.call(body);
  body.run = &LaneRunner::run_body;
  stream.launch(body);
  if (timed != nullptr) {
    stream.record(*timed->end);
    timed_[lane].push_back({.step = step, .op = task.op, .computes = task.computes});
    if (!device_.asynchronous()) read_times(lane);
  }
  stream.record(end);
  if (device_.asynchronous()) under_way_[lane].add(task, step);
  if (task.meets) turnstile_.leave();
  if (task.answers) end.wait();
  if (lane == main_lane_ && task.op == step_ends_.front() && hooks_.stepped) {
    ended_.push_back(step);
    deliver(1);
  }
  issued_[task.op].add();
  if (pulses_) {
    pulse_.fetch_add(1, std::memory_order_release);
    pulse_.notify_all();
  }
}

void LaneRunner::run_host(void* self, const Body& body) {
  LaneRunner& runner = *static_cast<LaneRunner*>(self);
  if (runner.stopped_) return;
  runner.guard([&] { runner.hooks_.host(body.op, body.step); });
}

void LaneRunner::run_body(void* self, const Body& body) {
  LaneRunner& runner = *static_cast<LaneRunner*>(self);
  if (runner.stopped_) return;
  runner.guard([&] {
    if (!runner.hooks_.execute(body.op, body.step)) runner.end_after(body.step);
  });
}

void LaneRunner::mark_epoch() {
  const std::shared_ptr<Event> mark = device_.timed_event(none);
  // Before the mark: how long the host takes to wake up is no part of the time.
  const std::int64_t at = now();
  streams_[main_lane_]->record(*mark);
  mark->wait();
  std::ranges::fill(epochs_, Epoch{.mark = mark, .nanoseconds = at});
}

void LaneRunner::read_times(std::size_t lane) {
  const auto rounded = [](double seconds) { return std::llround(seconds * 1e9); };
  for (boost::circular_buffer<Issued>& timed = timed_[lane]; !timed.empty(); timed.pop_front()) {
    const Issued& op = timed.front();
    Span& of = span(op.op, op.step);
    if (!of.end->done()) return;
    const std::int64_t lasted = rounded(of.end->seconds_since(*of.begin));
    if (op.computes) computed_.fetch_add(lasted, std::memory_order_relaxed);
    if (stamps_[lane].size() == stamps_[lane].capacity()) continue;
    Epoch& epoch = epochs_[lane];
    const double since = of.begin->seconds_since(*epoch.mark);
    const std::int64_t start = epoch.nanoseconds + rounded(since);
    stamps_[lane].push_back({.step = op.step, .start = start, .end = start + lasted, .op = op.op});
    if (since < longest_epoch) continue;
    epoch = {.mark = std::exchange(of.begin, device_.timed_event(op.op)), .nanoseconds = start};
  }
}

std::optional<LaneRunner::Place> LaneRunner::place(std::size_t lane) const {
  const auto ended = [&](const Given& given) { return event(given.task->op, given.step).done(); };
  const std::optional<Given> at = under_way_[lane].oldest(ended);
  if (!at) return std::nullopt;
  const bool dependent = std::ranges::any_of(at->task->waits, [&](const link::Wait& wait) {
    return at->step - wait.lag >= first_ && !event(wait.op, at->step - wait.lag).done();
  });
  return Place{.op = at->task->op, .step = at->step, .dependent = dependent};
}

void LaneRunner::deliver(std::size_t under_way) {
  while (!ended_.empty()) {
    const std::int64_t step = ended_.front();
    const bool wait = ended_.size() > under_way;
    for (const Id op : step_ends_)
      if (!ended(op, step, wait)) return;
    if (stopped_) return;
    ended_.pop_front();
    hooks_.stepped(step);
  }
}

bool LaneRunner::ended(Id op, std::int64_t step, bool wait) const {
  const std::int64_t needed = step - first_ + 1;
  for (IssueCounter::Seen seen = issued_[op].look(); IssueCounter::issued(seen) < needed;
       seen = issued_[op].look()) {
    if (op == step_ends_.front()) break;  // its counter is about to rise
    if (!wait || stopped_) return false;
    issued_[op].wait(seen);
  }
  const Event& end = event(op, step);
  if (!wait) return end.done();
  end.wait();
  return true;
}

bool LaneRunner::open(std::int64_t step) {
  if (step >= end_.load(std::memory_order_acquire)) return false;
  if (step < opened_.load(std::memory_order_acquire)) return true;
  const std::lock_guard lock(gate_);
  while (opened_.load(std::memory_order_relaxed) <= step) {
    const std::int64_t next = opened_.load(std::memory_order_relaxed);
    if (next >= end_) return false;
    if (stopped_) return false;
    if (hooks_.begin_step && !hooks_.begin_step(next)) {
      end_.store(next, std::memory_order_release);
      turnstile_.lower_end(next);
      return false;
    }
    opened_.store(next + 1, std::memory_order_release);
  }
  return true;
}

bool LaneRunner::satisfied(const Task& task, std::int64_t step) const {
  for (const link::Wait& wait : task.waits) {
    const std::int64_t needed = step - wait.lag - first_ + 1;
    if (needed > IssueCounter::issued(issued_[wait.op].look())) return false;
  }
  return true;
}

void LaneRunner::wait_for(const TaskLane& lane, const Task& task, std::int64_t step) {
  // On an asynchronous device the ops themselves say how far the lane is.
  if (lane.progress != nullptr && !device_.asynchronous())
    lane.progress->enter(LaneState::dependent, step, task.op);
  for (const link::Wait& wait : task.waits) {
    const std::int64_t needed = step - wait.lag - first_ + 1;
    const IssueCounter& counter = issued_[wait.op];
    for (IssueCounter::Seen seen = counter.look(); IssueCounter::issued(seen) < needed;
         seen = counter.look()) {
      // Read after the counter: who lowers the end wakes the counter after that, so either the new
      // end is seen here, or the counter is no longer as it was seen and the wait returns.
      if (step >= end_) return;
      counter.wait(seen);
    }
  }
}

void LaneRunner::end_after(std::int64_t step) {
  std::int64_t end = end_;
  do {
    if (end <= step + 1) return;  // a lane lowers the end at most once
  } while (!end_.compare_exchange_weak(end, step + 1));
  turnstile_.lower_end(step + 1);
  for (std::size_t i = 0; i < ops_; ++i) issued_[i].wake();
  pulse_.fetch_add(1);
  pulse_.notify_all();
}

void LaneRunner::stop(std::exception_ptr error, const std::string& what) {
  {
    const std::lock_guard lock(error_lock_);
    if (stopped_) return;
    error_ = std::move(error);
    stopped_ = true;
  }
  for (std::size_t i = 0; i < ops_; ++i) issued_[i].release();
  pulse_.fetch_add(1);
  pulse_.notify_all();
  end_.store(first_);  // lanes that are between two ops end, too
  turnstile_.lower_end(first_);
  if (hooks_.failed) hooks_.failed(what);
}

}  // namespace rehearse::runtime
