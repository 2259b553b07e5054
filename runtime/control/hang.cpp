// Finds who is to blame for a hang from the last heartbeat of every rank: a rank stuck in its own
// work, or the rank that all others wait for. Declared in supervisor.h.

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "runtime/control/supervisor.h"

namespace rehearse::runtime {
namespace {

std::string place(const RankView& rank, const LaneView& lane, Deadline now,
                  const ControlOptions& options) {
  // Lanes count steps from 0, everything that users see from 1.
  std::string text = fmt::format("lane {} has been at step {}", lane.name, lane.step() + 1);
  if (lane.op() != none) {
    text += fmt::format(", op {}", lane.op());
    if (options.describe) text += fmt::format(" ({})", options.describe(rank.rank, lane.op()));
  }
  return text +
         fmt::format(" for {:.1f} s", std::chrono::duration<double>(now - lane.since).count());
}

bool communicates(const RankView& rank) {
  return rank.finished || std::ranges::any_of(rank.lanes, [](const LaneView& lane) {
           return lane.state() == LaneState::communicating;
         });
}

std::pair<std::int64_t, Id> advance(const RankView& rank) {
  std::pair<std::int64_t, Id> most = {-1, 0};
  for (const LaneView& lane : rank.lanes) {
    most = std::max(most, {lane.step(), lane.op() == none ? 0 : lane.op()});
  }
  return most;
}

std::optional<Blame> stuck_at_work(const RankView& rank, Deadline now,
                                   const ControlOptions& options) {
  for (const LaneView& lane : rank.lanes) {
    if (lane.state() == LaneState::working && now - lane.since > to_duration(options.timeout)) {
      return Blame{rank.rank, "makes no progress: " + place(rank, lane, now, options)};
    }
  }
  return std::nullopt;
}

std::string waits(const std::vector<RankView>& ranks, Deadline now, const ControlOptions& options) {
  std::string text = "every rank waits for another:";
  for (const RankView& rank : ranks) {
    for (const LaneView& lane : rank.lanes) {
      if (lane.state() != LaneState::communicating) continue;
      text += fmt::format("\n  rank {}: {}", rank.rank, place(rank, lane, now, options));
    }
  }
  return text;
}

}  // namespace

std::optional<Blame> find_hang(const std::vector<RankView>& ranks, Deadline now,
                               const ControlOptions& options) {
  for (const RankView& rank : ranks) {
    if (rank.finished) continue;
    if (auto blame = stuck_at_work(rank, now, options)) return blame;
  }
  bool somebody_waits = false;
  for (const RankView& rank : ranks) {
    somebody_waits = somebody_waits || communicates(rank);
    const Seconds rest = rank.finished        ? options.timeout
                         : rank.lanes.empty() ? options.join + options.timeout
                                              : Seconds();
    if (now - rank.since <= to_duration(rest)) return std::nullopt;
    for (const LaneView& lane : rank.lanes) {
      if (now - lane.since <= to_duration(options.timeout)) return std::nullopt;
    }
  }
  const bool all_finished =
      std::ranges::all_of(ranks, [](const RankView& rank) { return rank.finished; });
  if (!somebody_waits || all_finished) return std::nullopt;
  const RankView* last = nullptr;
  for (const RankView& rank : ranks) {
    if (communicates(rank)) continue;
    if (last == nullptr || advance(rank) < advance(*last)) last = &rank;
  }
  if (last == nullptr) return Blame{none, waits(ranks, now, options)};
  if (last->lanes.empty()) return Blame{last->rank, "has not begun while others wait for it"};
  const auto lane = std::ranges::max_element(last->lanes, {}, &LaneView::packed);
  return Blame{last->rank,
               "has not arrived while others wait for it: " + place(*last, *lane, now, options)};
}

}  // namespace rehearse::runtime
