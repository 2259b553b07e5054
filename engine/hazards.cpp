// See hazards.h. Each storage instance is cut at the boundaries of its views; each piece remembers
// its last write and the reads since, in the order in which ops serve a step.
#include "engine/hazards.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "engine/errors.h"
#include "engine/names.h"

namespace rehearse {
namespace {

struct Piece {
  Id first_write = none, last_write = none;
  Layout layout = {};
  bool unread = false;
  std::vector<Id> reads = {};  // of this step's version, since the last write
  std::vector<std::pair<Id, std::uint8_t>> old =
      {};  // reads of versions of earlier steps: (op, age)
  std::vector<std::pair<Id, Layout>> expected = {};  // layouts that those reads expect
};

class Analysis {
 public:
  Analysis(const Program& program, const Role& role) : program_(program), role_(role) {
    cuts_.resize(role.storages.size());
    for (Id s = 0; s < role.storages.size(); ++s) cuts_[s] = {0, role.storages[s].elements};
    for (const View& v : role.views)
      cuts_[v.storage].push_back(v.begin), cuts_[v.storage].push_back(v.end);
    std::size_t pieces = 0, instances = 0;
    for (Id s = 0; s < role.storages.size(); ++s) {
      auto& cut = cuts_[s];
      std::sort(cut.begin(), cut.end());
      cut.erase(std::unique(cut.begin(), cut.end()), cut.end());
      piece_base_.push_back(pieces);
      out_.instance_base.push_back(instances);
      pieces += (cut.size() - 1) * static_cast<std::size_t>(role.storages[s].indices);
      instances += static_cast<std::size_t>(role.storages[s].indices);
    }
    pieces_.resize(pieces);
    any_view_.assign(role.storages.size(), none);
    for (Id v = 0; v < role.views.size(); ++v) any_view_[role.views[v].storage] = v;
    out_.finals.resize(instances);
    out_.first_writer.assign(instances, none);
    for (const View& v : role.views) {
      const auto& cut = cuts_[v.storage];
      auto at = [&](std::int64_t x) {
        return static_cast<std::size_t>(std::lower_bound(cut.begin(), cut.end(), x) - cut.begin());
      };
      range_.emplace_back(at(v.begin), at(v.end));
    }
  }

  Hazards run() {
    turn_.resize(role_.ops.size());
    Id turn = 0;
    for (Id op : step_order(role_)) {
      turn_[op] = turn++;
      // Operands are read before results are written, whatever their order in the list.
      for (const Ref& ref : role_.ops[op].refs)
        if (ref.mode == Mode::read) for_pieces(ref, [&](Piece& p) { read(op, ref, p); });
      for (const Ref& ref : role_.ops[op].refs)
        if (ref.mode != Mode::read) for_pieces(ref, [&](Piece& p) { write(op, ref, p); });
    }
    across_steps();
    auto key = [](const Hazard& h) { return std::tuple(h.op, h.on, h.lag, h.kind); };
    std::sort(out_.list.begin(), out_.list.end(),
              [&](const Hazard& a, const Hazard& b) { return key(a) < key(b); });
    out_.list.erase(std::unique(out_.list.begin(), out_.list.end(),
                                [](const Hazard& a, const Hazard& b) {
                                  return std::tuple(a.op, a.on, a.lag) ==
                                         std::tuple(b.op, b.on, b.lag);
                                }),
                    out_.list.end());
    return std::move(out_);
  }

 private:
  template <class F>
  void for_pieces(const Ref& ref, F f) {
    const Id s = role_.views[ref.view].storage;
    const std::size_t per = cuts_[s].size() - 1;
    const auto [begin, end] = range_[ref.view];
    const std::size_t base = piece_base_[s] + ref.index * per;
    for (std::size_t i = begin; i < end; ++i) f(pieces_[base + i]);
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
    if (!in_lane_order(op, on, lag))
      out_.list.push_back({.op = op, .on = on, .lag = lag, .kind = kind, .view = view});
  }

  /// Whether the lane that both are on orders them anyhow.
  bool in_lane_order(Id op, Id on, int lag) const {
    const Op &later = role_.ops[op], &earlier = role_.ops[on];
    if (later.lane != earlier.lane || role_.lanes[later.lane].order != Order::in_order)
      return false;
    const int iterations = lag + later.shift - earlier.shift;
    return iterations > 0 || (iterations == 0 && on < op);
  }

  void check_layout(Id op, Id view, Layout expected, Layout found, Id writer) const {
    if (expected == found) return;
    // A rank's own part of a copy is a shard.
    if (found == Layout{} && expected == Layout{.shard = role_.views[view].slice}) return;
    throw ProgramError(
        fmt::format("role {}: layout mismatch on '{}': a {} is expected, but the last write leaves "
                    "a {}; is a collective missing or "
                    "doubled?\n  {}\n> {}",
                    role_.name, role_.views[view].name, layout_text(expected), layout_text(found),
                    to_text(program_, role_, writer), to_text(program_, role_, op)));
  }

  std::string layout_text(Layout layout) const {
    auto axes = [&](Axes a) {
      std::string out;
      for (unsigned i = 0; i < 32; ++i)
        if (a >> i & 1)
          out += (out.empty() ? "" : ",") +
                 (i < program_.mesh.size() ? program_.mesh[i].name : fmt::format("g{}", i));
      return out;
    };
    std::string out;
    if (layout.partial) out += "partial sum over " + axes(layout.partial);
    if (layout.shard) out += (out.empty() ? "" : " and ") + ("shard over " + axes(layout.shard));
    return out.empty() ? "copy" : out;
  }

  /// What is written and never read was meant for somebody: most often a collective is missing.
  [[noreturn]] void refuse_dead(const Piece& p, Id view) const {
    throw ProgramError(fmt::format("role {}: '{}' is written and never read\n> {}", role_.name,
                                   role_.views[view].name, to_text(program_, role_, p.last_write)));
  }

  void read(Id op, const Ref& ref, Piece& p) {
    if (ref.age > 0) {
      p.old.emplace_back(op, ref.age);
      p.expected.emplace_back(ref.view, ref.layout);
      return;
    }
    if (p.last_write == none)
      throw ProgramError(
          fmt::format("role {}: '{}' is read before anything writes it in the step\n> {}",
                      role_.name, role_.views[ref.view].name, to_text(program_, role_, op)));
    check_layout(op, ref.view, ref.layout, p.layout, p.last_write);
    need(op, p.last_write, 0, HazardKind::read_after_write, ref.view);
    p.unread = false;
    if (p.reads.empty() || p.reads.back() != op) p.reads.push_back(op);
  }

  void write(Id op, const Ref& ref, Piece& p) {
    if (ref.mode == Mode::add && ref.age == 0) {
      if (p.last_write == none)
        throw ProgramError(
            fmt::format("role {}: '{}' is added to before anything writes it in the step\n> {}",
                        role_.name, role_.views[ref.view].name, to_text(program_, role_, op)));
      check_layout(op, ref.view, ref.layout, p.layout, p.last_write);
      need(op, p.last_write, 0, HazardKind::read_after_write, ref.view);
    }
    if (ref.mode == Mode::add && ref.age > 0) {
      p.old.emplace_back(op, ref.age);
      p.expected.emplace_back(ref.view, ref.layout);
    }
    if (p.unread && ref.mode == Mode::write) refuse_dead(p, ref.view);
    p.unread = true;
    need(op, p.last_write, 0, HazardKind::write_after_write, ref.view);
    for (Id r : p.reads) need(op, r, 0, HazardKind::write_after_read, ref.view);
    p.reads.clear();
    if (p.first_write == none) p.first_write = op;
    p.last_write = op;
    p.layout = ref.layout;
  }

  /// A state that no op writes and that only moves read: the program is given it (a migration).
  bool given(Id storage, const Piece& p) const {
    return role_.storages[storage].life == Life::state &&
           std::all_of(p.old.begin(), p.old.end(), [&](const auto& read) {
             const std::vector<Ref>& refs = role_.ops[read.first].refs;
             return std::all_of(refs.begin(), refs.end(), [&](const Ref& ref) {
               return role_.views[ref.view].storage != storage || ref.slot == Slot::source;
             });
           });
  }

  /// Versions of earlier steps: reads wait for the last write of theirs; the first write of a step
  /// waits for every reader of the version whose slot it takes.
  void across_steps() {
    for (Id s = 0; s < role_.storages.size(); ++s) {
      const Storage& storage = role_.storages[s];
      const std::size_t per = cuts_[s].size() - 1;
      for (int index = 0; index < storage.indices; ++index) {
        std::vector<Id> finals;
        for (std::size_t i = 0; i < per; ++i) {
          const Piece& p = pieces_[piece_base_[s] + static_cast<std::size_t>(index) * per + i];
          if (p.first_write == none) {
            if (!p.old.empty() && !given(s, p))
              throw ProgramError(fmt::format(
                  "role {}: nothing ever writes '{}', which this reads\n> {}", role_.name,
                  role_.views[p.expected[0].first].name, to_text(program_, role_, p.old[0].first)));
            continue;
          }
          if (p.unread && p.old.empty() && storage.life != Life::state)
            refuse_dead(p, any_view_[s]);
          const Id view = any_view_[s];
          Id& writer = out_.first_writer[out_.instance_base[s] + static_cast<std::size_t>(index)];
          if (writer == none || turn_[p.first_write] < turn_[writer]) writer = p.first_write;
          for (std::size_t k = 0; k < p.old.size(); ++k) {
            const auto& [op, age] = p.old[k];
            check_layout(op, p.expected[k].first, p.expected[k].second, p.layout, p.last_write);
            need(op, p.last_write, age, HazardKind::read_after_write, view);
            if (storage.versions - age < 0 || op != p.first_write)
              need(p.first_write, op, storage.versions - age, HazardKind::write_after_read, view);
          }
          for (Id r : p.reads)
            need(p.first_write, r, storage.versions, HazardKind::write_after_read, view);
          need(p.first_write, p.last_write, storage.versions, HazardKind::write_after_write, view);
          finals.insert(finals.end(), p.reads.begin(), p.reads.end());
          if (p.reads.empty()) finals.push_back(p.last_write);
        }
        std::sort(finals.begin(), finals.end());
        finals.erase(std::unique(finals.begin(), finals.end()), finals.end());
        out_.finals[out_.instance_base[s] + static_cast<std::size_t>(index)] = std::move(finals);
      }
    }
  }

  const Program& program_;
  const Role& role_;
  std::vector<std::vector<std::int64_t>> cuts_ = {};
  std::vector<std::size_t> piece_base_ = {};
  std::vector<std::pair<std::size_t, std::size_t>> range_ = {};
  std::vector<Piece> pieces_ = {};
  std::vector<Id> any_view_ = {};
  std::vector<Id> turn_ = {};  // of each op in the step
  Hazards out_ = {};
};

}  // namespace

std::vector<Id> step_order(const Role& role) {
  std::vector<Id> order(role.ops.size());
  for (Id i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](Id a, Id b) { return role.ops[a].shift < role.ops[b].shift; });
  return order;
}

Hazards hazards_of(const Program& program, const Role& role) {
  return Analysis(program, role).run();
}

}  // namespace rehearse
