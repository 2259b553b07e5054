#include "runtime/executor/fault_injector.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/faults/phase.h"

namespace rehearse::runtime {
namespace {

using faults::Kind;
using faults::Phase;

bool damages(Kind kind) {
  return kind == Kind::checkpoint_truncated || kind == Kind::checkpoint_flipped;
}

/// Stops this process. A child lets it go on after `duration`; 0: nobody does.
void freeze(Seconds duration) {
  const pid_t self = getpid();
  if (duration.value > 0 && fork() == 0) {
    // Only async-signal-safe calls: other threads of the parent may hold any lock.
    const timespec wait{
        .tv_sec = static_cast<time_t>(duration.value),
        .tv_nsec = static_cast<long>(1e9 * (duration.value - std::floor(duration.value)))};
    nanosleep(&wait, nullptr);
    kill(self, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
}

/// Keeps this thread from going on, for good if `duration` is 0.
void hang(Seconds duration) {
  do {
    std::this_thread::sleep_for(
        std::chrono::duration<double>(duration.value > 0 ? duration.value : 3600));
  } while (duration.value == 0);
}

/// Makes this process's writes to files fail, after `duration` no longer.
void fill_disk(Seconds duration) {
  rlimit old_limit = {};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit nothing = {.rlim_cur = 0, .rlim_max = old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &nothing);
  if (duration.value == 0) return;
  std::thread([old_limit, duration] {
    std::this_thread::sleep_for(std::chrono::duration<double>(duration.value));
    setrlimit(RLIMIT_FSIZE, &old_limit);
  }).detach();
}

/// Halves a file, or changes a bit in its middle.
void damage(const std::string& path, Kind kind) {
  const auto size = std::filesystem::file_size(path);
  if (kind == Kind::checkpoint_truncated) return std::filesystem::resize_file(path, size / 2);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(size / 2));
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(static_cast<std::streamoff>(size / 2));
  file.put(byte);
}

}  // namespace

std::string not_replayed(const faults::Event& event) {
  if (event.at) return "it is keyed by time; real ranks replay events keyed by step and phase";
  const auto known = {Kind::rank_dies,
                      Kind::node_dies,
                      Kind::freezes,
                      Kind::hangs,
                      Kind::slows,
                      Kind::disk_full,
                      Kind::disk_slow,
                      Kind::checkpoint_truncated,
                      Kind::checkpoint_flipped,
                      Kind::wrong_numbers};
  if (std::ranges::find(known, event.kind) == known.end())
    return "real ranks replay rank_dies, node_dies, freezes, hangs, slows, disk_full, disk_slow, "
           "checkpoint_truncated, checkpoint_flipped and wrong_numbers";
  if (event.rank == none && event.kind != Kind::node_dies && event.kind != Kind::disk_slow)
    return "real ranks replay events whose target is a rank";
  return "";
}

void Slowness::slow_down(const faults::Event& event) {
  using Clock = std::chrono::steady_clock;
  until_ = event.duration.value > 0
               ? (Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(event.duration.value)))
                     .time_since_epoch()
                     .count()
               : std::numeric_limits<Clock::rep>::max();
  factor_ = event.factor;
}

double Slowness::now() const {
  return std::chrono::steady_clock::now().time_since_epoch().count() <
                 until_.load(std::memory_order_relaxed)
             ? factor_.load(std::memory_order_relaxed)
             : 1;
}

/// Whether this rank does what the event says.
bool FaultInjector::strikes(const faults::Event& event) const {
  if (event.kind == Kind::disk_slow) return event.node == none || event.node == place_.node;
  return event.rank == place_.rank || (place_.leads && event.node == place_.node);
}

FaultInjector::FaultInjector(const faults::Trace& trace, const RankPlace& place,
                             const std::string& folder)
    : place_(place), log_((std::filesystem::path(folder) / "faults.jsonl").string()) {
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const faults::Event& event = trace.events[i];
    if (place_.rank == 0 && event.rank != none && event.rank >= place_.ranks)
      absent_.push_back({.number = i, .event = event});
    if (!strikes(event)) continue;
    const bool of_all = event.kind == Kind::disk_slow && event.node == none;
    mine_.push_back(
        {.number = i,
         .event = event,
         .notes = of_all ? place_.rank == 0 : place_.leads || event.rank == place_.rank});
  }
  std::ifstream in(log_);
  for (std::string line; std::getline(in, line);) {
    const auto one = nlohmann::json::parse(line, nullptr, false);
    if (!one.is_object()) continue;
    for (auto* events : {&mine_, &absent_})
      for (Mine& m : *events)
        if (one.value("event", std::size_t{0}) == m.number && one.contains("event"))
          m.struck = true;
  }
  // Ranks that start again find the disk as slow as it was.
  for (const Mine& m : mine_)
    if (m.struck && m.event.kind == Kind::disk_slow && m.event.duration.value == 0)
      slow_disk(m.event);
  left_ = static_cast<int>(std::ranges::count(mine_, false, &Mine::struck));
}

void FaultInjector::note(const Mine& one, std::int64_t step) const {
  const nlohmann::ordered_json line{{"event", one.number},
                                    {"kind", name_of(one.event.kind)},
                                    {"rank", place_.rank},
                                    {"step", step},
                                    {"phase", name_of(one.event.phase)}};
  std::ofstream(log_, std::ios::app) << line.dump() << "\n" << std::flush;
}

template <class Due>
void FaultInjector::strike(std::int64_t step, Due due, const std::string& shard) {
  if (left_.load(std::memory_order_relaxed) == 0) return;
  std::vector<faults::Event> now;
  {
    const std::lock_guard lock(mutex_);
    for (Mine& m : mine_) {
      if (m.struck || !due(m.event)) continue;
      m.struck = true;
      --left_;
      if (m.notes) note(m, step);  // before the rank can die of it
      now.push_back(m.event);
    }
  }
  for (const faults::Event& event : now) act(event, step, shard);
}

std::vector<std::string> FaultInjector::not_struck(std::int64_t steps) const {
  std::vector<std::string> out;
  const auto add = [&](const Mine& m, const std::string& why) {
    out.push_back(
        fmt::format("event {} ({}) did not strike: {}", m.number + 1, name_of(m.event.kind), why));
  };
  for (const Mine& m : absent_)
    if (!m.struck)
      add(m, fmt::format("there was no rank {} any more: the run ended with {} rank{}",
                         m.event.rank, place_.ranks, place_.ranks == 1 ? "" : "s"));
  for (const Mine& m : mine_) {
    if (m.struck || !m.notes) continue;
    const faults::Event& e = m.event;
    const std::string why =
        e.phase == Phase::recovery ? "no recovery took place"
        : e.step > steps           ? fmt::format("the run ended after step {}", steps)
        : e.phase == Phase::save || damages(e.kind)
            ? fmt::format("no checkpoint of its target was saved in step {} or later", e.step)
            : fmt::format("its target has no op of the phase {} in step {}", name_of(e.phase),
                          e.step);
    add(m, why);
  }
  return out;
}

void FaultInjector::on_corruption(Corrupt corrupt) {
  const std::lock_guard lock(mutex_);
  corrupt_ = std::move(corrupt);
}

void FaultInjector::slow_disk(const faults::Event& event) {
  (event.node == none ? shared_disk_ : own_disk_).slow_down(event);
}

void FaultInjector::act(const faults::Event& event, std::int64_t step, const std::string& shard) {
  switch (event.kind) {
    case Kind::node_dies:
      lose_node_();
      [[fallthrough]];
    case Kind::rank_dies:
      raise(SIGKILL);
      break;
    case Kind::freezes:
      freeze(event.duration);
      break;
    case Kind::hangs:
      hang(event.duration);
      break;
    case Kind::slows:
      ops_.slow_down(event);
      break;
    case Kind::disk_full:
      fill_disk(event.duration);
      break;
    case Kind::disk_slow:
      slow_disk(event);
      break;
    case Kind::wrong_numbers:
      corrupt_(event.factor, step - 1);
      break;
    default:
      damage(shard, event.kind);
  }
}

void FaultInjector::strike_before_op(const program::Work& work, std::int64_t step) {
  const std::optional<Phase> phase = faults::phase_of(work);
  strike(step + 1, [&](const faults::Event& e) {
    return !damages(e.kind) && e.step == step + 1 && (e.phase == Phase::begin || e.phase == phase);
  });
}

void FaultInjector::saving(std::int64_t steps) {
  strike(steps, [&](const faults::Event& e) {
    return !damages(e.kind) && e.phase == Phase::save && steps >= e.step;
  });
}

void FaultInjector::saved(std::int64_t steps, const std::string& shard) {
  strike(
      steps, [&](const faults::Event& e) { return damages(e.kind) && steps >= e.step; }, shard);
}

void FaultInjector::recovering(std::int64_t steps) {
  strike(steps,
         [&](const faults::Event& e) { return !damages(e.kind) && e.phase == Phase::recovery; });
}

}  // namespace rehearse::runtime
