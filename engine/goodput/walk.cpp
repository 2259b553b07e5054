#include "engine/goodput/walk.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "engine/goodput/fleet.h"
#include "engine/goodput/progress.h"

namespace rehearse::goodput {
namespace {

constexpr Ticks never = std::numeric_limits<Ticks>::max();

/// A corruption that nobody has noticed yet, and the newest checkpoint from before it.
struct Corruption {
  Ticks noticed = 0;
  Point clean_point = {};
};

class Walk {
 public:
  Walk(const Setting& setting, const Policy& policy, std::span<const Incident> incidents)
      : setting_(setting),
        policy_(policy),
        incidents_(incidents),
        end_(setting.duration),
        fleet_(setting, policy.units),
        progress_(setting),
        replicas_(setting.replicas) {
    out_.least_replicas = replicas_;
  }

  Outcome run() {
    set_pace();
    while (now_ < end_) {
      const Ticks until = std::min(end_, next());
      progress_.train(now_, until);
      now_ = until;
      if (now_ < end_) act();
    }
    out_.duration = end_;
    out_.productive = progress_.worth();
    out_.steps = progress_.steps();
    out_.lost_steps = progress_.lost_steps();
    out_.checkpoints = progress_.written();
    book(Loss::rework, progress_.rework());
    book(Loss::checkpoint, progress_.stalled());
    book(Loss::degraded, progress_.training() - progress_.worth());
    out_.undetected = static_cast<int>(corruptions_.size());
    return out_;
  }

 private:
  void book(Loss loss, Ticks t) { out_.lost[static_cast<std::size_t>(loss)] += t; }
  bool short_handed() const { return replicas_ < setting_.replicas; }
  /// Nodes that come while the run trains matter only to a run that lets them join.
  bool awaits_nodes() const { return short_handed() && (policy_.grows || policy_.units); }

  /// The next time at which something happens while the run trains.
  Ticks next() const {
    Ticks t = next_ < incidents_.size() ? incidents_[next_].at : never;
    for (const auto* some : {&slow_, &drag_})
      for (const auto& [until, factor] : *some) t = std::min(t, until);
    for (const Corruption& c : corruptions_) t = std::min(t, c.noticed);
    if (awaits_nodes()) t = std::min({t, fleet_.next_return(), rejoins_});
    return std::max(t, now_);
  }

  void act() {
    if (next_ < incidents_.size() && incidents_[next_].at <= now_) {
      const Incident& i = incidents_[next_++];
      if (interrupts(i.strike)) {
        if (fleet_.uses(i))
          interruption(strike(i));
        else
          fleet_.strike(i, progress_.complete(now_));
      } else if (i.strike == Strike::stalls) {
        stall(i);
      } else {
        note(i);
      }
    } else if (const auto noticed = noticed_corruption()) {
      interruption(0, noticed);
    } else {
      for (auto* some : {&slow_, &drag_})
        std::erase_if(*some, [&](const auto& s) { return s.first <= now_; });
      fleet_.collect(now_);
      if (awaits_nodes()) join();
    }
    set_pace();
  }

  /// Steps take longer while a node is slow, while replicas are missing, and by what being able to
  /// recover costs.
  void set_pace() {
    const bool keeps_batch = !policy_.units;
    double factor = 1 + setting_.overhead;
    for (const auto& [until, f] : slow_) factor = std::min(1e5, factor * std::max(1.0, f));
    progress_.drag(dragged());
    const Ticks step =
        keeps_batch && short_handed() ? setting_.step_with(replicas_) : setting_.step;
    const Ticks worth = keeps_batch ? setting_.step
                                    : static_cast<Ticks>(static_cast<__int128>(setting_.step) *
                                                         replicas_ / setting_.replicas);
    const auto slowed =
        static_cast<Ticks>(static_cast<double>(std::max(step, setting_.step)) * factor);
    progress_.pace(std::max(slowed, worth), worth);
    out_.least_replicas = std::min(out_.least_replicas, replicas_);
  }

  /// How many times as long the disk with the checkpoints takes.
  double dragged() const {
    double factor = 1;
    for (const auto& [until, f] : drag_)
      if (until > now_) factor = std::min(1e5, factor * std::max(1.0, f));
    return factor;
  }

  /// A failure strikes nodes of the run. Returns the time until it is noticed.
  Ticks strike(const Incident& i) {
    ++out_.interruptions;
    progress_.abort_checkpoint(now_);
    const std::int64_t complete = progress_.complete(now_);
    if (fleet_.strike(i, complete)) {
      progress_.lose_parts(now_);
      lost_at_ = complete;
      ++out_.destroyed;
    }
    return detection_of(setting_, i);
  }

  Situation situation(bool corrupt) {
    Situation s = fleet_.situation(corrupt);
    s.parts_lost = parts_lost();
    return s;
  }
  /// Whether nodes have lost the newest checkpoint, and none is complete since.
  bool parts_lost() { return progress_.complete(now_) == lost_at_; }

  /// What strikes without an interruption, or while nothing trains.
  void note(const Incident& i) {
    switch (i.strike) {
      case Strike::slows:
        slow_.emplace_back(i.lasts > 0 ? i.at + i.lasts : never, i.factor);
        break;
      case Strike::drags:
        if (i.slots.empty() != setting_.checkpoint.local)
          drag_.emplace_back(i.lasts > 0 ? i.at + i.lasts : never, i.factor);
        break;
      case Strike::corrupts:
        corruptions_.push_back({i.at + detection_of(setting_, i), progress_.committed(now_)});
        break;
      case Strike::returns:
        fleet_.arrive(i.slots, i.at);
        break;
      case Strike::spoils:
        progress_.spoil(now_);
        break;
      case Strike::blocks:
        if (!i.slots.empty() || !setting_.checkpoint.local)  // else it is the disk that all share
          progress_.block(i.at, i.lasts > 0 ? i.at + i.lasts : never);
        break;
      case Strike::stalls:
      case Strike::loses:
      case Strike::stops:
        break;
    }
  }

  /// A node stands still. A run that does not notice in time waits for it.
  void stall(const Incident& i) {
    if (passes_unnoticed(setting_, i)) {
      if (!elapse(Loss::degraded, i.lasts)) interruption(struck_);
    } else {
      interruption(strike(i));
    }
  }

  /// The point before the corruption that is noticed now.
  std::optional<Point> noticed_corruption() {
    for (std::size_t c = 0; c < corruptions_.size(); ++c) {
      if (corruptions_[c].noticed > now_) continue;
      const Point clean_point = corruptions_[c].clean_point;
      corruptions_.erase(corruptions_.begin() + static_cast<std::ptrdiff_t>(c));
      ++out_.interruptions;
      return clean_point;
    }
    return std::nullopt;
  }

  /// Lets time pass in which nothing trains. False: a failure struck before it was over;
  /// `struck_` is then the time until that is noticed.
  bool elapse(Loss loss, Ticks t) {
    const Ticks until = t > end_ - now_ ? end_ : now_ + t;
    while (next_ < incidents_.size() && incidents_[next_].at < until) {
      const Incident& i = incidents_[next_++];
      if (interrupts(i.strike) && !fleet_.uses(i)) {
        fleet_.strike(i, progress_.complete(i.at));
        continue;
      }
      book(loss, i.at - now_);
      now_ = i.at;
      if (interrupts(i.strike)) {
        struck_ = strike(i);
        return false;
      }
      note(i);
    }
    book(loss, until - now_);
    now_ = until;
    return true;
  }

  /// From a failure until the run trains again, or its time is over. A failure that strikes during
  /// the recovery begins it again. `clean`: the run goes back to this point, as later steps were
  /// wrong.
  void interruption(Ticks unnoticed, const std::optional<Point>& clean = std::nullopt) {
    if (clean) go_back(earlier(*clean, progress_.committed(now_)));
    while (now_ < end_) {
      if (unnoticed > 0) {
        const Ticks t = std::exchange(unnoticed, 0);
        if (!elapse(Loss::detection, t)) {
          unnoticed = struck_;
          continue;
        }
      }
      fleet_.collect(now_);
      const Decision d = policy_.recover(situation(clean.has_value()));
      // What is lost is lost now, whatever strikes before the run goes on.
      if (d.survivors) {
        progress_.drop_step();
      } else {
        go_back(progress_.committed(now_));
      }
      if (d.waits) {
        if (!wait_for_nodes()) unnoticed = struck_;
        continue;
      }
      fleet_.fill(d.spares);
      if (!elapse(Loss::waiting, d.replacing) || !elapse(Loss::replanning, d.replanning) ||
          !elapse(Loss::restart, d.restarting + more_reading(d))) {
        unnoticed = std::max<Ticks>(struck_, 0);
        continue;
      }
      replicas_ = d.replicas;
      out_.reads += d.survivors ? 0 : 1;
      if (!policy_.units || !d.survivors) fleet_.all_start_anew();
      if (policy_.units) rejoins_ = short_handed() ? now_ + std::max<Ticks>(1, d.rejoins) : never;
      return;
    }
  }

  /// What a slow disk adds to a recovery that reads a checkpoint.
  Ticks more_reading(const Decision& d) {
    if (d.survivors || !setting_.checkpoint.on_disk || parts_lost()) return 0;
    return static_cast<Ticks>((dragged() - 1) * static_cast<double>(setting_.checkpoint.load));
  }

  /// Goes back to a checkpoint. Corruptions that are younger than it are gone.
  void go_back(const Point& point) {
    progress_.go_back(point);
    std::erase_if(corruptions_,
                  [&](const Corruption& c) { return point.steps <= c.clean_point.steps; });
  }
  static Point earlier(const Point& a, const Point& b) { return a.steps < b.steps ? a : b; }

  /// Waits until a node returns. False: a failure struck one of those that are left.
  bool wait_for_nodes() {
    Ticks until = std::min(end_, fleet_.next_return());
    for (std::size_t i = next_; i < incidents_.size() && incidents_[i].at < until; ++i)
      if (incidents_[i].strike == Strike::returns) until = incidents_[i].at + 1;
    const bool quiet = elapse(Loss::waiting, until - now_);
    if (now_ >= end_) out_.ends_waiting = true;
    return quiet;
  }

  /// Nodes have returned, or a replica has started again.
  void join() {
    if (policy_.units) {
      fleet_.fill(fleet_.spares());
      const int standing = fleet_.standing_replicas();
      if (now_ < rejoins_) {
        if (standing > replicas_ && rejoins_ == never)
          rejoins_ = now_ + std::max<Ticks>(1, setting_.restart);
        return;
      }
      rejoins_ = never;
      if (standing <= replicas_) return;
      progress_.drop_step();
      if (!elapse(Loss::restart, setting_.copy)) return interruption(struck_);
      replicas_ = standing;
      fleet_.all_start_anew();
      return;
    }
    const Decision d = policy_.recover(situation(false));
    if (d.waits || d.replicas <= replicas_) return;
    progress_.drop_step();
    fleet_.fill(d.spares);
    if (!elapse(Loss::replanning, d.replanning) || !elapse(Loss::restart, setting_.copy))
      return interruption(struck_);
    replicas_ = d.replicas;
    fleet_.all_start_anew();
  }

  const Setting& setting_;
  const Policy& policy_;
  std::span<const Incident> incidents_;
  Ticks end_ = 0, now_ = 0, struck_ = 0, rejoins_ = never;
  std::size_t next_ = 0;
  std::int64_t lost_at_ = -1;  // complete checkpoints when nodes last lost the newest one
  Fleet fleet_;
  Progress progress_;
  int replicas_ = 1;
  std::vector<std::pair<Ticks, double>> slow_ = {}, drag_ = {};  // until when, by which factor
  std::vector<Corruption> corruptions_ = {};
  Outcome out_ = {};
};

}  // namespace

Outcome walk(const Setting& setting, const Policy& policy, std::span<const Incident> incidents) {
  return Walk(setting, policy, incidents).run();
}

}  // namespace rehearse::goodput
