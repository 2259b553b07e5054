#include "engine/execution/explain/breakdown.h"

#include <algorithm>
#include <array>

#include "engine/execution/trace/chrome_trace.h"

namespace rehearse::execution {
namespace {

/// An op that ran on a place, cut at the ends of the time in question.
struct Piece {
  double start = 0, end = 0;
  Instance op = {};
};

bool starts_first(const Piece& a, const Piece& b) { return a.start < b.start; }

/// Distributes the time of one place.
class PlaceTime {
 public:
  PlaceTime(const History& history, const WorkParts& parts, double from, double until)
      : history_(history), parts_(parts), from_(from), until_(until), out_(parts.all().size()) {}

  /// Seconds of each part; returns those of the compute lane.
  double distribute(Id role, Id place) {
    gather(role, place);
    double busy = 0, at = from_;
    for (const Piece& op : compute_) {
      idle(at, op.start, &op.op);
      if (op.start < until_) {
        const double seconds = std::max(0.0, std::min(op.end, until_) - std::max(op.start, at));
        busy += seconds;
        out_[parts_.of(role, op.op.op)].ranks += seconds;
      }
      at = std::max(at, op.end);
      if (at >= until_) return busy;
    }
    idle(at, until_, nullptr);
    return busy;
  }
  const std::vector<PartTime>& parts() const { return out_; }

 private:
  const program::Role& role(Id r) const { return history_.linked().program.roles[r]; }

  void gather(Id r, Id place) {
    for (auto* list : {&compute_, &communication_, &other_, &host_}) list->clear();
    next_ = {};
    const Id lane = compute_lane_of(role(r));
    const auto ops = static_cast<Id>(role(r).ops.size());
    for (int step = 0; step < history_.steps(r); ++step)
      for (Id o = 0; o < ops; ++o) {
        const Instance at{r, o, step, place};
        if (!history_.ran(at) || history_.end(at) <= from_) continue;
        const program::Op& op = role(r).ops[o];
        auto& list = communicates(op.work)                             ? communication_
                     : op.lane == lane                                 ? compute_
                     : std::holds_alternative<program::Issue>(op.work) ? host_
                                                                       : other_;
        list.push_back({history_.start(at), history_.end(at), at});
      }
    // Ops of no length must keep their place before the op that follows them.
    for (auto* list : {&compute_, &communication_, &other_, &host_})
      std::stable_sort(list->begin(), list->end(), starts_first);
  }

  void add_idle(Id part, double seconds) {
    out_[part].ranks += seconds;
    out_[part].idle += seconds;
  }

  /// A list of pieces and how far it has been read. `active`: those that began and may still run.
  struct Reader {
    std::size_t next = 0;
    std::vector<Piece> active = {};
  };

  /// Gives the part of [a, b) in which a piece runs to that piece; appends the rest to `rest`.
  void take(const std::vector<Piece>& pieces, Reader& reader, double a, double b,
            std::vector<std::pair<double, double>>& rest) {
    for (; reader.next < pieces.size() && pieces[reader.next].start < b; ++reader.next)
      reader.active.push_back(pieces[reader.next]);
    std::erase_if(reader.active, [&](const Piece& p) { return p.end <= a; });
    double at = a;
    for (const Piece& p : reader.active) {
      const double start = std::max(p.start, at), end = std::min(p.end, b);
      if (end <= start) continue;
      if (start > at) rest.emplace_back(at, start);
      add_idle(parts_.of(p.op.role, p.op.op), end - start);
      at = end;
    }
    if (at < b) rest.emplace_back(at, b);
  }

  /// The compute lane is idle from a to b; `next` is the op that it then runs.
  void idle(double a, double b, const Instance* next) {
    b = std::min(b, until_);
    if (b <= a) return;
    std::vector<std::pair<double, double>> silent, waiting;
    take(communication_, next_[0], a, b, silent);
    for (const auto& [x, y] : silent) take(other_, next_[1], x, y, waiting);
    const double since = next != nullptr ? host_late_since(*next) : b;
    for (const auto& [x, y] : waiting) {
      const double issued = issuing(std::max(x, since), y);
      if (issued > 0) add_idle(parts_.host(), issued);
      add_idle(parts_.waiting(), y - x - issued);
    }
  }

  /// From when on only the host kept the op waiting; its start when the host did not.
  double host_late_since(const Instance& op) const {
    double host = -1, others = -1;
    for (const link::Wait& wait : history_.linked().roles[op.role].waits.of(op.op)) {
      const Instance on{op.role, wait.op, op.step - wait.lag, op.place};
      if (!history_.ran(on)) continue;
      double& latest =
          std::holds_alternative<program::Issue>(role(op.role).ops[wait.op].work) ? host : others;
      latest = std::max(latest, history_.end(on));
    }
    return host > others ? others : history_.start(op);
  }
  /// Seconds of [a, b) in which the host issues.
  double issuing(double a, double b) const {
    double seconds = 0;
    auto at = std::partition_point(host_.begin(), host_.end(),
                                   [&](const Piece& p) { return p.end <= a; });
    for (; at != host_.end() && at->start < b; ++at)
      seconds += std::min(at->end, b) - std::max(at->start, a);
    return seconds;
  }

  const History& history_;
  const WorkParts& parts_;
  double from_, until_;
  std::vector<Piece> compute_ = {}, communication_ = {}, other_ = {}, host_ = {};
  std::array<Reader, 2> next_ = {};  // of communication_ and other_
  std::vector<PartTime> out_;
};

/// The fraction of the time in which a local op of a server runs.
double server_busy(const History& history, Id role, Id place, double from, double until) {
  std::vector<std::pair<double, double>> ran;
  const auto& ops = history.linked().program.roles[role].ops;
  for (int step = 0; step < history.steps(role); ++step)
    for (Id o = 0; o < ops.size(); ++o)
      if (const Instance at{role, o, step, place}; history.ran(at) && !communicates(ops[o].work))
        ran.emplace_back(std::max(from, history.start(at)), std::min(until, history.end(at)));
  std::sort(ran.begin(), ran.end());
  double busy = 0, last = from;
  for (const auto& [start, end] : ran) {
    busy += std::max(0.0, end - std::max(start, last));
    last = std::max(last, end);
  }
  return busy / (until - from);
}

}  // namespace

Breakdown break_down(const History& history, const WorkParts& parts, std::span<const PathOp> path,
                     double from, double until, int steps) {
  Breakdown out;
  out.parts.resize(parts.all().size());
  for (const PathOp& part : path) {
    const Id id = part.op.op == none ? parts.waiting() : parts.of(part.op.role, part.op.op);
    out.parts[id].path += (part.end - part.start) / steps;
  }
  double ranks = 0;
  for (Id r = 0; r < history.linked().program.roles.size(); ++r) {
    const bool computes = compute_lane_of(history.linked().program.roles[r]) != none;
    for (Id place = 0; place < history.places(r); ++place) {
      PlaceUse& use = out.places.emplace_back(
          PlaceUse{r, place, history.rank_of(r, place), history.ranks_at(r, place), computes});
      if (!computes) {
        use.busy = server_busy(history, r, place, from, until);
        continue;
      }
      ranks += use.ranks;
      PlaceTime time(history, parts, from, until);
      use.busy = time.distribute(r, place) / (until - from);
      for (std::size_t i = 0; i < out.parts.size(); ++i) {
        out.parts[i].ranks += use.ranks * time.parts()[i].ranks / steps;
        out.parts[i].idle += use.ranks * time.parts()[i].idle / steps;
      }
    }
  }
  for (std::size_t i = 0; i < out.parts.size() && ranks > 0; ++i) {
    PartTime& part = out.parts[i];
    part.ranks /= ranks, part.idle /= ranks;
    out.bubble_fraction += part.idle * steps / (until - from);
    if (parts.all()[i].kind == PartKind::communication) out.exposed_comm_s += part.idle;
  }
  return out;
}

}  // namespace rehearse::execution
