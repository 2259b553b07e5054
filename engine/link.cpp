// See link.h. Tables and channels are checked first (link_checks.h), then the events of a few steps
// are sorted (clocks.h); their clocks say whether hazards are covered, which waits are redundant
// and what memory is needed (memory_plan.h).
#include "engine/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ranges>

#include "engine/clocks.h"
#include "engine/errors.h"
#include "engine/hazards.h"
#include "engine/link_checks.h"
#include "engine/memory_plan.h"
#include "engine/workspace.h"

namespace rehearse {
namespace {

class Linker {
 public:
  explicit Linker(Program program, Workspace workspace = {}) : workspace_(std::move(workspace)) {
    out_.program = std::move(program);
  }

  /// Gives the program back without the waits that it does not need. Trusts its hazards to be
  /// covered.
  Program prune() {
    place_ranks();
    resolve();
    match_channels(out_);
    clocks_.emplace(out_, 0);
    find_redundant();
    for (const Redundant& r : std::ranges::reverse_view(out_.redundant)) {
      auto& after = out_.program.roles[r.role].ops[r.op].after;
      after.erase(after.begin() + static_cast<std::ptrdiff_t>(r.index));
    }
    return std::move(out_.program);
  }

  LinkedProgram run() {
    const Program& p = out_.program;
    check_tables(p);
    place_ranks();
    resolve();
    match_channels(out_);
    int lag = 0;
    for (const Role& role : p.roles)
      for (const Hazard& hazard : hazards_.emplace_back(hazards_of(p, role)).list)
        lag = std::max(lag, hazard.lag);
    clocks_.emplace(out_, lag);
    check_hazards();
    find_redundant();
    for (Id r = 0; r < p.roles.size(); ++r) {
      find_deaths(p.roles[r], hazards_[r], out_.roles[r]);
      out_.memory.push_back(plan_memory(p, r, hazards_[r], *clocks_, workspace_));
    }
    order();
    out_.hash = hash_of(p);
    return std::move(out_);
  }

 private:
  void place_ranks() {
    const Program& p = out_.program;
    out_.role_of.assign(static_cast<std::size_t>(p.world_size), none);
    out_.place_of = out_.role_of;
    for (Id r = 0; r < p.roles.size(); ++r)
      for (Id i = 0; i < p.roles[r].ranks.size(); ++i) {
        const Id rank = p.roles[r].ranks[i];
        if (rank >= out_.role_of.size() || out_.role_of[rank] != none)
          throw ProgramError(
              fmt::format("rank {} plays no role or two ('{}')", rank, p.roles[r].name));
        out_.role_of[rank] = r;
        out_.place_of[rank] = i;
      }
    for (std::size_t rank = 0; rank < out_.role_of.size(); ++rank)
      if (out_.role_of[rank] == none)
        throw ProgramError(fmt::format("rank {} plays no role", rank));
  }

  void resolve() {
    out_.roles.resize(out_.program.roles.size());
    for (Id r = 0; r < out_.program.roles.size(); ++r) resolve(r);
  }

  void resolve(Id r) {
    const Program& p = out_.program;
    const Role& role = p.roles[r];
    LinkedRole& linked = out_.roles[r];
    linked.lane_ops.resize(role.lanes.size());
    linked.ops.resize(role.ops.size());
    for (Id o = 0; o < role.ops.size(); ++o) {
      const Op& op = role.ops[o];
      linked.lane_ops[op.lane].push_back(o);
      LinkedOp& l = linked.ops[o];
      const Ref* payload = find(op, Slot::target);
      if (const Ref* source = find(op, Slot::source);
          source && (!payload || elements_of(p, role, *source) > elements_of(p, role, *payload)))
        payload = source;
      if (std::holds_alternative<Compute>(op.work) || std::holds_alternative<Kernel>(op.work) ||
          std::holds_alternative<Update>(op.work)) {
        for (const Ref& ref : op.refs)
          l.bytes += bytes_of(p, role, ref) * (ref.mode == Mode::add ? 2 : 1);
      } else if (payload) {
        l.elements = elements_of(p, role, *payload);
        l.bytes = bytes_of(p, role, *payload);
        l.wire = role.storages[role.views[payload->view].storage].dtype;
      }
      if (std::holds_alternative<Put>(op.work) || std::holds_alternative<Take>(op.work))
        out_.mailboxes = true;
    }
  }

  void check_hazards() {
    static constexpr const char* kinds[]{"read after write", "write after read",
                                         "write after write"};
    const int step = clocks_->steady();
    for (Id r = 0; r < hazards_.size(); ++r) {
      const std::uint32_t* begin = nullptr;
      Id of = none;
      for (const Hazard& h : hazards_[r].list) {  // grouped by op
        if (step - h.lag < 0) continue;
        if (h.op != of) begin = clocks_->before(r, of = h.op, step);
        if (clocks_->ended(begin, r, h.on, step - h.lag)) continue;
        const Role& role = out_.program.roles[r];
        throw ProgramError(
            fmt::format("data race ({}) on '{}' in role {}: nothing makes the second op wait for "
                        "the first{}\n  {}\n> {}",
                        kinds[static_cast<int>(h.kind)], role.views[h.view].name, role.name,
                        h.lag ? fmt::format(" of {} step(s) before", h.lag) : "",
                        to_text(out_.program, role, h.on), to_text(out_.program, role, h.op)));
      }
    }
  }

  void find_redundant() {
    const int step = clocks_->steady();
    for (Id r = 0; r < out_.program.roles.size(); ++r)
      for (Id o = 0; o < out_.program.roles[r].ops.size(); ++o) {
        const auto& after = out_.program.roles[r].ops[o].after;
        for (std::size_t i = 0; i < after.size(); ++i) {
          if (after[i].throttle || step < after[i].lag) continue;
          const std::uint32_t* others = clocks_->before(r, o, step, i);
          if (clocks_->ended(others, r, after[i].op, step - after[i].lag))
            out_.redundant.push_back({r, o, i});
        }
      }
  }

  /// Offsets make every wait point to an earlier or the same macro-iteration; then one
  /// macro-iteration is sorted.
  void order() {
    const std::size_t events = out_.events.size();
    // In the middle of the sorted steps every event has its steady-state predecessors.
    const int step = clocks_->steady();
    std::vector<std::vector<std::pair<Id, int>>> before(
        events);  // (event, how many steps earlier it serves)
    for (Id e = 0; e < events; ++e)
      for (const RoleOp& m : out_.events[e])
        clocks_->waits(m.role, m.op, step, [&](Id r, Id o, int at) {
          before[e].emplace_back(out_.event_of[r][o], step - at);
        });
    std::vector<int> offset(events, 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (const auto& [at, e] : clocks_->sorted()) {
        if (at != step) continue;
        for (const auto& [p, lag] : before[e])
          if (offset[p] - lag > offset[e]) offset[e] = offset[p] - lag, changed = true;
      }
    }
    std::vector<std::uint32_t> missing(events, 0);
    std::vector<std::vector<Id>> then(events);
    for (Id e = 0; e < events; ++e)
      for (const auto& [p, lag] : before[e])
        if (lag + offset[e] - offset[p] == 0) ++missing[e], then[p].push_back(e);
    std::vector<Id> queue;
    for (Id e = 0; e < events; ++e)
      if (!missing[e]) queue.push_back(e);
    for (std::size_t k = 0; k < queue.size(); ++k)
      for (Id t : then[queue[k]])
        if (--missing[t] == 0) queue.push_back(t);
    for (Id e : queue)
      for (const RoleOp& m : out_.events[e]) out_.order.push_back({m.role, m.op, offset[e]});
    out_.max_offset = offset.empty() ? 0 : *std::max_element(offset.begin(), offset.end());
  }

  LinkedProgram out_ = {};
  Workspace workspace_ = {};
  std::vector<Hazards> hazards_ = {};
  std::optional<StepClocks> clocks_ = {};
};

}  // namespace

LinkedProgram link(Program program, const Workspace& workspace) {
  return Linker(std::move(program), workspace).run();
}
LinkedProgram link(Program program) { return Linker(std::move(program)).run(); }

Program without_redundant_waits(Program program) { return Linker(std::move(program)).prune(); }

}  // namespace rehearse
