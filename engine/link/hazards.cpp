// Each storage instance is cut into pieces at the boundaries of its views. While the ops of a step
// are walked in step order, each piece keeps its last write and the reads since then. Where the
// last write works in some steps only, it also keeps the writes before it, which other steps see.
#include "engine/link/hazards.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <ranges>
#include <span>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/link/layout_text.h"
#include "engine/link/pieces.h"
#include "engine/link/step_set.h"

namespace rehearse::link {
namespace {

/// Limits on the pieces of a role, and on (ref, piece) pairs. Programs of the largest models are
/// orders of magnitude below both.
constexpr std::size_t most_pieces = std::size_t{1} << 24, most_visits = std::size_t{1} << 26;

class Analysis {
 public:
  Analysis(const program::Program& program, const program::Role& role)
      : program_(program), role_(role) {
    cut();
    std::size_t pieces = 0, instances = 0;
    for (Id s = 0; s < role.storages.size(); ++s) {
      piece_base_.push_back(pieces);
      out_.instance_base.push_back(instances);
      pieces += per_instance(s) * static_cast<std::size_t>(role.storages[s].indices);
      instances += static_cast<std::size_t>(role.storages[s].indices);
    }
    if (pieces > most_pieces)
      throw ProgramError(fmt::format(
          "role {}: views cut its storages into {} pieces; the linker follows at most {}",
          role.name, pieces, most_pieces));
    pieces_.resize(pieces);
    any_view_.assign(role.storages.size(), none);
    range_.reserve(role.views.size());
    for (Id v = 0; v < role.views.size(); ++v) {
      const program::View& view = role.views[v];
      any_view_[view.storage] = v;
      const auto cut = cuts(view.storage);
      const auto at = [&](std::int64_t x) {
        return static_cast<std::size_t>(std::lower_bound(cut.begin(), cut.end(), x) - cut.begin());
      };
      range_.emplace_back(at(view.begin), at(view.end));
    }
    std::size_t refs = 0, visits = 0;
    for (const program::Op& op : role.ops) {
      refs += op.refs.size();
      for (const program::Ref& ref : op.refs)
        visits += range_[ref.view].second - range_[ref.view].first;
    }
    if (visits > most_visits)
      throw ProgramError(
          fmt::format("role {}: its ops touch {} pieces of storages; the linker follows at most {}",
                      role.name, visits, most_visits));
    reads_.reserve(refs), old_.reserve(refs), out_.list.reserve(2 * refs);
  }

  /// Finds the hazards within a step, then those across steps. `uses`: also fills first_writers and
  /// finals, which the memory plan needs.
  Hazards run(bool uses) {
    for (Id op : step_order(role_)) {
      // An op reads its operands before it writes its results, in whatever order it lists them.
      for (const program::Ref& ref : role_.ops[op].refs)
        if (ref.mode == program::Mode::read) for_pieces(ref, [&](Piece& p) { read(op, ref, p); });
      for (const program::Ref& ref : role_.ops[op].refs)
        if (ref.mode != program::Mode::read) for_pieces(ref, [&](Piece& p) { write(op, ref, p); });
    }
    for (Id s = 0; s < role_.storages.size(); ++s)
      for (Piece& p : pieces_of(s)) across_steps(s, p);
    sort();
    if (uses) find_uses();
    return std::move(out_);
  }

 private:
  /// The boundaries of a storage's pieces, in elements, ascending; includes 0 and the end.
  std::span<const std::int64_t> cuts(Id s) const {
    return {cuts_.data() + cut_begin_[s], cut_end_[s] - cut_begin_[s]};
  }
  std::size_t per_instance(Id s) const { return cut_end_[s] - cut_begin_[s] - 1; }
  std::span<Piece> pieces_of(Id s) {
    return {pieces_.data() + piece_base_[s],
            per_instance(s) * static_cast<std::size_t>(role_.storages[s].indices)};
  }

  void cut() {
    const auto storages = static_cast<Id>(role_.storages.size());
    cut_begin_.assign(storages + 1, 0);
    for (const program::View& v : role_.views) cut_begin_[v.storage + 1] += 2;
    for (Id s = 0; s < storages; ++s) cut_begin_[s + 1] += cut_begin_[s] + 2;
    cuts_.resize(cut_begin_.back());
    cut_end_.assign(cut_begin_.begin(), cut_begin_.end() - 1);
    for (Id s = 0; s < storages; ++s)
      cuts_[cut_end_[s]++] = 0, cuts_[cut_end_[s]++] = role_.storages[s].elements;
    for (const program::View& v : role_.views)
      cuts_[cut_end_[v.storage]++] = v.begin, cuts_[cut_end_[v.storage]++] = v.end;
    for (Id s = 0; s < storages; ++s) {
      const auto begin = cuts_.begin() + cut_begin_[s], end = cuts_.begin() + cut_end_[s];
      std::sort(begin, end);
      cut_end_[s] = static_cast<std::uint32_t>(std::unique(begin, end) - cuts_.begin());
    }
  }

  template <class F>
  void for_pieces(const program::Ref& ref, F f) {
    const Id s = role_.views[ref.view].storage;
    const auto [begin, end] = range_[ref.view];
    Piece* const base = pieces_.data() + piece_base_[s] + ref.index * per_instance(s);
    for (std::size_t i = begin; i < end; ++i) f(base[i]);
  }

  /// Sorts by op, then by `on`, lag and kind. Of hazards with equal op, `on` and lag, only the one
  /// with the lowest kind stays.
  void sort() {
    auto& list = out_.list;
    std::vector<std::uint32_t> fill(role_.ops.size() + 1, 0);
    for (const Hazard& h : list) ++fill[h.op + 1];
    std::partial_sum(fill.begin(), fill.end(), fill.begin());
    std::vector<Hazard> sorted(list.size());
    for (const Hazard& h : list) sorted[fill[h.op]++] = h;  // then fill[op] ends op's hazards
    list.clear();
    for (std::size_t begin = 0; begin < sorted.size();) {
      const Id op = sorted[begin].op;
      const std::size_t end = fill[op];
      std::sort(
          sorted.begin() + static_cast<std::ptrdiff_t>(begin),
          sorted.begin() + static_cast<std::ptrdiff_t>(end), [](const Hazard& a, const Hazard& b) {
            return a.on != b.on ? a.on < b.on : a.lag != b.lag ? a.lag < b.lag : a.kind < b.kind;
          });
      for (std::size_t i = begin; i < end; ++i)
        if (i == begin || sorted[i].on != sorted[i - 1].on || sorted[i].lag != sorted[i - 1].lag)
          list.push_back(sorted[i]);
      begin = end;
    }
  }

  void need(Id op, Id on, int lag, HazardKind kind, Id view) {
    if (on == none || (on == op && lag == 0)) return;
    if (lag < 0)
      throw ProgramError(fmt::format(
          "role {}: a version of '{}' is read after it has been overwritten: the storage keeps "
          "{}\n> {}",
          role_.name, role_.views[view].name, role_.storages[role_.views[view].storage].versions,
          to_text(program_, role_, on)));
    out_.max_lag = std::max(out_.max_lag, lag);
    if (in_lane_order(op, on, lag)) return;
    // Neighbouring pieces of a large view give the same hazard: keep it once.
    if (out_.list.empty() || out_.list.back().op != op || out_.list.back().on != on ||
        out_.list.back().lag != lag || out_.list.back().kind > kind)
      out_.list.push_back({.op = op, .on = on, .lag = lag, .kind = kind, .view = view});
  }

  /// Whether an in-order lane holds both ops and runs `on` of step t - lag before `op` of step t.
  bool in_lane_order(Id op, Id on, int lag) const {
    const program::Op &later = role_.ops[op], &earlier = role_.ops[on];
    if (later.lane != earlier.lane || role_.lanes[later.lane].order != program::Order::in_order)
      return false;
    const int iterations = lag + later.shift - earlier.shift;
    return iterations > 0 || (iterations == 0 && on < op);
  }

  void check_layout(Id op, Id view, program::Layout needed, program::Layout found,
                    Id writer) const {
    if (needed == found) return;
    // A sliced view of a copy reads this rank's own part of it, which is a shard.
    if (found == program::Layout{} && needed == program::Layout{.shard = role_.views[view].slice})
      return;
    throw ProgramError(fmt::format(
        "role {}: layout mismatch on '{}': a {} is expected, but the last write leaves "
        "a {}; is a collective missing or "
        "doubled?\n  {}\n> {}",
        role_.name, role_.views[view].name, text_of(program_, needed), text_of(program_, found),
        to_text(program_, role_, writer), to_text(program_, role_, op)));
  }

  const program::When& when(Id op) const { return role_.ops[op].when; }

  /// The writes before the last one that some step still sees, in their order.
  std::span<Write> earlier(const Piece& p) {
    if (p.earlier == none) return {};
    return earlier_[p.earlier];
  }

  /// Calls f for each write of the piece that `op` sees in some step in which it works, the latest
  /// first. Refuses an op that works in a step in which nothing has written the piece; a state then
  /// has its value from before.
  template <class F>
  void each_seen(Id op, Id view, Piece& p, F f) {
    if (works_whenever(when(p.last.op), when(op))) return f(p.last);
    StepSet left(when(op));
    const auto look = [&](Write& write) {
      StepSet rest = left;
      if (!rest.remove(when(write.op))) return;
      // A write that works in every few steps only leaves the others to the writes before it.
      if (when(op).every % when(write.op).every == 0) left = std::move(rest);
      f(write);
    };
    look(p.last);
    for (Write& write : std::ranges::reverse_view(earlier(p))) look(write);
    const program::Storage& storage = role_.storages[role_.views[view].storage];
    if (!left.empty() && (storage.life != program::Life::state || storage.versions > 1))
      throw ProgramError(
          fmt::format("role {}: '{}' is read in steps in which nothing writes it\n  {}\n> {}",
                      role_.name, role_.views[view].name, to_text(program_, role_, p.last.op),
                      to_text(program_, role_, op)));
  }

  /// Whether the op rounds its weights from the fp32 copy that it updates. Ranks that exchange
  /// these copies in every step round them again before anything reads the weights.
  bool rounded(Id op, Id view) const {
    const program::Ref* weights = find(role_.ops[op], program::Slot::param);
    return weights != nullptr && find(role_.ops[op], program::Slot::master) != nullptr &&
           role_.views[weights->view].storage == role_.views[view].storage;
  }

  /// Refuses data that is written and never read: most often a collective is missing.
  [[noreturn]] void refuse_dead(Id writer, Id view) const {
    throw ProgramError(fmt::format("role {}: '{}' is written and never read\n> {}", role_.name,
                                   role_.views[view].name, to_text(program_, role_, writer)));
  }

  /// `op` uses what this step has written.
  void see(Id op, const program::Ref& ref, Piece& p) {
    each_seen(op, ref.view, p, [&](Write& write) {
      check_layout(op, ref.view, ref.layout, write.layout, write.op);
      need(op, write.op, 0, HazardKind::read_after_write, ref.view);
      write.unread = false;
    });
  }

  void read(Id op, const program::Ref& ref, Piece& p) {
    if (ref.age > 0) {
      old_.add(p.old, {.op = op, .view = ref.view, .layout = ref.layout, .age = ref.age});
      return;
    }
    if (p.last.op == none)
      throw ProgramError(
          fmt::format("role {}: '{}' is read before anything writes it in the step\n> {}",
                      role_.name, role_.views[ref.view].name, to_text(program_, role_, op)));
    see(op, ref, p);
    if (p.reads.empty() || reads_.last(p.reads) != op) reads_.add(p.reads, op);
  }

  void write(Id op, const program::Ref& ref, Piece& p) {
    if (ref.mode == program::Mode::add && ref.age == 0) {
      if (p.last.op == none)
        throw ProgramError(
            fmt::format("role {}: '{}' is added to before anything writes it in the step\n> {}",
                        role_.name, role_.views[ref.view].name, to_text(program_, role_, op)));
      see(op, ref, p);
    }
    if (ref.mode == program::Mode::add && ref.age > 0) {
      old_.add(p.old, {.op = op, .view = ref.view, .layout = ref.layout, .age = ref.age});
    }
    need(op, p.last.op, 0, HazardKind::write_after_write, ref.view);
    reads_.each(p.reads, [&](Id r) { need(op, r, 0, HazardKind::write_after_read, ref.view); });
    p.reads = {};
    if (p.first_write == none) p.first_write = op;
    replace(op, ref, p);
  }

  /// `op` becomes the last write. Of the writes before it, those stay that some step still sees.
  void replace(Id op, const program::Ref& ref, Piece& p) {
    const auto replaced = [&](const Write& write) {
      if (write.op == none) return true;
      if (!works_whenever(when(op), when(write.op))) return false;
      if (write.unread && ref.mode == program::Mode::write && !rounded(write.op, ref.view))
        refuse_dead(write.op, ref.view);
      return true;
    };
    std::vector<Write> stay;
    for (const Write& write : earlier(p))
      if (!replaced(write)) stay.push_back(write);
    if (!replaced(p.last)) stay.push_back(p.last);
    p.last = {.op = op, .layout = ref.layout, .unread = true};
    if (stay.empty() && p.earlier == none) return;
    if (p.earlier == none) p.earlier = static_cast<Id>(earlier_.size()), earlier_.emplace_back();
    earlier_[p.earlier] = std::move(stay);
  }

  /// Whether a state is only ever read as a `source`. If no op writes such a state, it is input of
  /// the program (the old states of a migration).
  bool given(Id storage, const Piece& p) const {
    bool moves = role_.storages[storage].life == program::Life::state;
    old_.each(p.old, [&](const OldRead& read) {
      for (const program::Ref& ref : role_.ops[read.op].refs)
        moves = moves &&
                (role_.views[ref.view].storage != storage || ref.slot == program::Slot::source);
    });
    return moves;
  }

  /// Hazards between steps. A read with age a waits for the last write of step t - a. The first
  /// write of a step waits for every read of the version whose slot it overwrites.
  void across_steps(Id s, Piece& p) {
    const program::Storage& storage = role_.storages[s];
    const Id view = any_view_[s];
    if (p.first_write == none) {
      if (!p.old.empty() && !given(s, p))
        throw ProgramError(fmt::format("role {}: nothing ever writes '{}', which this reads\n> {}",
                                       role_.name, role_.views[old_.first(p.old).view].name,
                                       to_text(program_, role_, old_.first(p.old).op)));
      return;
    }
    const auto needless = [&](const Write& write) {
      if (write.unread && p.old.empty() && storage.life != program::Life::state)
        refuse_dead(write.op, view);
    };
    needless(p.last);
    std::ranges::for_each(earlier(p), needless);
    old_.each(p.old, [&](const OldRead& read) {
      check_layout(read.op, read.view, read.layout, p.last.layout, p.last.op);
      for (const Write& write : earlier(p))
        check_layout(read.op, read.view, read.layout, write.layout, write.op);
      need(read.op, p.last.op, read.age, HazardKind::read_after_write, view);
      const int lag = storage.versions - read.age;
      if (lag < 0 || read.op != p.first_write)
        need(p.first_write, read.op, lag, HazardKind::write_after_read, view);
    });
    reads_.each(p.reads, [&](Id r) {
      need(p.first_write, r, storage.versions, HazardKind::write_after_read, view);
    });
    need(p.first_write, p.last.op, storage.versions, HazardKind::write_after_write, view);
  }

  /// Fills first_writers and finals.
  void find_uses() {
    for (Id s = 0; s < role_.storages.size(); ++s) {
      const std::size_t per = per_instance(s);
      for (int index = 0; index < role_.storages[s].indices; ++index) {
        std::vector<Id> firsts, last_users;
        for (const Piece& p : pieces_of(s).subspan(static_cast<std::size_t>(index) * per, per)) {
          if (p.first_write == none) continue;
          firsts.push_back(p.first_write);
          reads_.each(p.reads, [&](Id r) { last_users.push_back(r); });
          if (p.reads.empty()) last_users.push_back(p.last.op);
        }
        out_.first_writers.push_back(in_step_order(std::move(firsts)));
        out_.last_users.push_back(in_step_order(std::move(last_users)));
      }
    }
  }

  std::vector<Id> in_step_order(std::vector<Id> ops) const {
    std::sort(ops.begin(), ops.end(), [&](Id a, Id b) {
      return std::pair(role_.ops[a].shift, a) < std::pair(role_.ops[b].shift, b);
    });
    ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
    return ops;
  }

  const program::Program& program_;
  const program::Role& role_;
  std::vector<std::int64_t> cuts_ = {};                       // boundaries of all storages' pieces
  std::vector<std::uint32_t> cut_begin_ = {}, cut_end_ = {};  // [storage]: its part of cuts_
  std::vector<std::size_t> piece_base_ = {};                  // [storage]: its first piece
  std::vector<std::pair<std::size_t, std::size_t>> range_ = {};  // [view]: [first, end) piece
  std::vector<Piece> pieces_ = {};
  std::vector<std::vector<Write>> earlier_ = {};  // Piece::earlier
  Lists<Id> reads_ = {};
  Lists<OldRead> old_ = {};
  std::vector<Id> any_view_ = {};  // [storage]: one of its views, for messages
  Hazards out_ = {};
};

}  // namespace

std::vector<Id> step_order(const program::Role& role) {
  std::vector<Id> order(role.ops.size());
  for (Id i = 0; i < order.size(); ++i) order[i] = i;
  const auto earlier = [&](Id a, Id b) { return role.ops[a].shift < role.ops[b].shift; };
  if (!std::is_sorted(order.begin(), order.end(), earlier))
    std::stable_sort(order.begin(), order.end(), earlier);
  return order;
}

Hazards hazards_of(const program::Program& program, const program::Role& role) {
  return Analysis(program, role).run(true);
}
std::vector<Hazard> hazard_list(const program::Program& program, const program::Role& role) {
  return Analysis(program, role).run(false).list;
}

}  // namespace rehearse::link
