// See link.h. One step's ops become events (a rendezvous is one event of several roles); the events
// of a few steps are sorted topologically with vector clocks (one entry a lane of a role: how many
// of its ops have ended before an event starts). Clocks then answer every question: is a hazard
// covered, is a wait redundant, may two values share bytes.
#include "engine/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>

#include "engine/errors.h"
#include "engine/hazards.h"
#include "engine/link_checks.h"
#include "engine/names.h"
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
    sort();
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
    for (const Role& role : p.roles) hazards_.push_back(hazards_of(p, role));
    sort();
    check_hazards();
    find_redundant();
    for (Id r = 0; r < p.roles.size(); ++r) plan_memory(r);
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
    dims_.emplace_back();
    place_.emplace_back();
    std::vector<std::uint32_t> first(role.lanes.size());
    for (Id l = 0; l < role.lanes.size(); ++l) {
      first[l] = dimensions_;
      if (role.lanes[l].order == Order::in_order) ++dimensions_;
    }
    for (Id o = 0; o < role.ops.size(); ++o) {
      const Op& op = role.ops[o];
      const bool in_order = role.lanes[op.lane].order == Order::in_order;
      dims_[r].push_back(in_order ? first[op.lane] : dimensions_++);
      place_[r].push_back(in_order ? static_cast<std::uint32_t>(linked.lane_ops[op.lane].size())
                                   : 0);
      linked.lane_ops[op.lane].push_back(o);
      max_shift_ = std::max<int>(max_shift_, op.shift);
      for (const After& a : op.after) max_lag_ = std::max<int>(max_lag_, a.lag);
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

  /// The number of an op's instance on its lane: ops 1, 2, ... over all iterations.
  std::uint32_t number(Id r, Id o, int step) const {
    const Op& op = out_.program.roles[r].ops[o];
    const bool in_order = out_.program.roles[r].lanes[op.lane].order == Order::in_order;
    const auto length = in_order ? out_.roles[r].lane_ops[op.lane].size() : 1;
    return static_cast<std::uint32_t>(static_cast<std::size_t>(step + op.shift) * length) +
           place_[r][o] + 1;
  }

  std::uint32_t* clock(int step, Id event) {
    return clocks_.data() +
           (static_cast<std::size_t>(step) * out_.events.size() + event) * dimensions_;
  }

  /// Whatever an op waits for: (event, step) pairs, by lane order and by its waits. `skip`: leave
  /// out after[skip].
  template <class F>
  void waits(Id r, Id o, int step, F f, std::size_t skip = ~std::size_t{0}) const {
    const Role& role = out_.program.roles[r];
    const Op& op = role.ops[o];
    if (const auto [at, before] = lane_predecessor(r, o, step); before != none) f(r, before, at);
    for (std::size_t i = 0; i < op.after.size(); ++i)
      if (const int at = step - op.after[i].lag; i != skip && at >= 0) f(r, op.after[i].op, at);
  }

  /// The op before this one on its lane, and the step it serves; skips instances that serve no
  /// step.
  std::pair<int, Id> lane_predecessor(Id r, Id o, int step) const {
    const Role& role = out_.program.roles[r];
    const Op& op = role.ops[o];
    if (role.lanes[op.lane].order == Order::arrival)  // only its own previous instance
      return step > 0 ? std::pair{step - 1, o} : std::pair{0, none};
    const auto& lane = out_.roles[r].lane_ops[op.lane];
    std::size_t at = place_[r][o];
    int iteration = step + op.shift;
    while (true) {
      if (at == 0) {
        if (iteration == 0) return {0, none};
        --iteration, at = lane.size();
      }
      const Id before = lane[--at];
      const int served = iteration - role.ops[before].shift;
      if (served >= 0 && served < steps_) return {served, before};
      if (served < 0 && iteration == 0 && at == 0) return {0, none};
    }
  }

  void sort() {
    int lag = max_lag_;
    for (const Hazards& h : hazards_)
      for (const Hazard& one : h.list) lag = std::max(lag, one.lag);
    // Enough for every path of that lag; a shift can make a path look ahead and come back.
    steps_ = std::max(lag, 1) + 1 + 2 * max_shift_;
    const std::size_t events = out_.events.size(),
                      nodes = events * static_cast<std::size_t>(steps_);
    std::vector<std::uint32_t> missing(nodes, 0);
    std::vector<std::size_t> start(nodes + 1, 0);
    auto node = [&](Id r, Id o, int step) {
      return static_cast<std::size_t>(step) * events + out_.event_of[r][o];
    };
    auto edges = [&](auto visit) {
      for (int t = 0; t < steps_; ++t)
        for (Id e = 0; e < events; ++e)
          for (const RoleOp& m : out_.events[e])
            waits(m.role, m.op, t, [&](Id r, Id o, int at) {
              visit(node(r, o, at), static_cast<std::size_t>(t) * events + e);
            });
    };
    edges([&](std::size_t from, std::size_t to) { ++start[from + 1], ++missing[to]; });
    std::partial_sum(start.begin(), start.end(), start.begin());
    std::vector<std::uint32_t> then(start.back());
    {
      auto fill = start;
      edges([&](std::size_t from, std::size_t to) {
        then[fill[from]++] = static_cast<std::uint32_t>(to);
      });
    }
    clocks_.assign(nodes * dimensions_, 0);
    std::vector<std::size_t> queue;
    queue.reserve(nodes);
    for (std::size_t n = 0; n < nodes; ++n)
      if (!missing[n]) queue.push_back(n);
    std::vector<std::uint32_t> end(dimensions_);
    for (std::size_t k = 0; k < queue.size(); ++k) {
      const std::size_t n = queue[k];
      const int step = static_cast<int>(n / events);
      const Id event = static_cast<Id>(n % events);
      const std::uint32_t* begin = clock(step, event);  // complete: all predecessors have joined it
      std::copy(begin, begin + dimensions_, end.begin());
      for (const RoleOp& m : out_.events[event])
        end[dims_[m.role][m.op]] = std::max(end[dims_[m.role][m.op]], number(m.role, m.op, step));
      for (std::size_t s = start[n]; s < start[n + 1]; ++s) {
        std::uint32_t* into = clocks_.data() + then[s] * dimensions_;
        for (std::size_t d = 0; d < dimensions_; ++d) into[d] = std::max(into[d], end[d]);
        if (--missing[then[s]] == 0) queue.push_back(then[s]);
      }
    }
    if (queue.size() < nodes) report_deadlock(missing);
    sorted_ = std::move(queue);
  }

  [[noreturn]] void report_deadlock(const std::vector<std::uint32_t>& missing) const {
    // Follow unmet waits from any stuck event: they must close a cycle, and the cycle is the
    // explanation.
    const std::size_t events = out_.events.size();
    std::size_t at = 0;
    while (!missing[at]) ++at;
    std::vector<std::size_t> path;
    while (std::find(path.begin(), path.end(), at) == path.end()) {
      path.push_back(at);
      const int step = static_cast<int>(at / events);
      std::size_t next = at;
      for (const RoleOp& m : out_.events[at % events])
        waits(m.role, m.op, step, [&](Id r, Id o, int s) {
          const std::size_t n = static_cast<std::size_t>(s) * events + out_.event_of[r][o];
          if (missing[n]) next = n;
        });
      at = next;
    }
    std::string text = "deadlock: each of these waits for the next, and the last for the first";
    const auto from = std::find(path.begin(), path.end(), at);
    int shown = 0;
    for (auto n = from; n != path.end() && shown < 12; ++n, ++shown)
      for (const RoleOp& m : out_.events[*n % events])
        text += fmt::format("\n{} step {} {}: {}", n == from ? '>' : ' ', *n / events,
                            out_.program.roles[m.role].name,
                            to_text(out_.program, out_.program.roles[m.role], m.op));
    throw ProgramError(text);
  }

  /// What an op itself waits for, without what the other members of its rendezvous wait for: a real
  /// collective reads and writes as soon as its own rank has issued it. `skip`: leave out
  /// after[skip].
  const std::uint32_t* local_clock(Id r, Id o, int step, std::size_t skip = ~std::size_t{0}) {
    const Id own = out_.event_of[r][o];
    if (skip == ~std::size_t{0} && out_.events[own].size() == 1) return clock(step, own);
    local_.assign(dimensions_, 0);
    waits(
        r, o, step,
        [&](Id pr, Id po, int at) {
          const Id event = out_.event_of[pr][po];
          const std::uint32_t* begin = clock(at, event);
          for (std::size_t d = 0; d < dimensions_; ++d) local_[d] = std::max(local_[d], begin[d]);
          for (const RoleOp& e : out_.events[event])
            local_[dims_[e.role][e.op]] =
                std::max(local_[dims_[e.role][e.op]], number(e.role, e.op, at));
        },
        skip);
    return local_.data();
  }

  void check_hazards() {
    static constexpr const char* kinds[]{"read after write", "write after read",
                                         "write after write"};
    const int step = steps_ - 1 - max_shift_;
    for (Id r = 0; r < hazards_.size(); ++r) {
      const std::uint32_t* begin = nullptr;
      Id of = none;
      for (const Hazard& h : hazards_[r].list) {  // grouped by op
        if (step - h.lag < 0) continue;
        if (h.op != of) begin = local_clock(r, of = h.op, step);
        if (begin[dims_[r][h.on]] >= number(r, h.on, step - h.lag)) continue;
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
    const int step = steps_ - 1 - max_shift_;
    for (Id r = 0; r < out_.program.roles.size(); ++r)
      for (Id o = 0; o < out_.program.roles[r].ops.size(); ++o) {
        const auto& after = out_.program.roles[r].ops[o].after;
        for (std::size_t i = 0; i < after.size(); ++i) {
          if (after[i].throttle || step < after[i].lag) continue;
          const std::uint32_t* others = local_clock(r, o, step, i);
          if (others[dims_[r][after[i].op]] >= number(r, after[i].op, step - after[i].lag))
            out_.redundant.push_back({r, o, i});
        }
      }
  }

  /// Offsets make every wait point to an earlier or the same macro-iteration; then one
  /// macro-iteration is sorted.
  void order() {
    const std::size_t events = out_.events.size();
    // In the middle of the sorted steps every event has its steady-state predecessors.
    const int step = steps_ - 1 - max_shift_;
    std::vector<std::vector<std::pair<Id, int>>> before(
        events);  // (event, how many steps earlier it serves)
    for (Id e = 0; e < events; ++e)
      for (const RoleOp& m : out_.events[e])
        waits(m.role, m.op, step,
              [&](Id r, Id o, int at) { before[e].emplace_back(out_.event_of[r][o], step - at); });
    std::vector<int> offset(events, 0);
    for (bool changed = true; changed;) {
      changed = false;
      for (const std::size_t n : sorted_) {
        const Id e = static_cast<Id>(n % events);
        if (n / events != static_cast<std::size_t>(step)) continue;
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

  void plan_memory(Id r) {
    const Role& role = out_.program.roles[r];
    const Hazards& hazards = hazards_[r];
    RoleMemory memory;
    std::map<std::string, std::int64_t> uses;
    auto bytes_of_storage = [&](Id s) {
      return role.storages[s].elements * size_of(role.storages[s].dtype);
    };
    for (Id s = 0; s < role.storages.size(); ++s) {
      const Storage& storage = role.storages[s];
      if (storage.life == Life::value) continue;
      const std::int64_t bytes = bytes_of_storage(s) * storage.indices * storage.versions;
      (storage.life == Life::state ? memory.state : memory.buffer) += bytes;
      uses[storage.name] += bytes;
    }
    struct Instance {
      Id storage = none;
      std::uint16_t index = 0;
    };
    std::vector<std::vector<Instance>> born(role.ops.size());
    for (Id s = 0; s < role.storages.size(); ++s) {
      if (role.storages[s].life != Life::value) continue;
      for (int i = 0; i < role.storages[s].indices; ++i) {
        const std::size_t instance = hazards.instance_base[s] + static_cast<std::size_t>(i);
        if (hazards.first_writer[instance] == none) continue;
        const Instance one{s, static_cast<std::uint16_t>(i)};
        born[hazards.first_writer[instance]].push_back(one);
        for (Id o : hazards.finals[instance])
          out_.roles[r].ops[o].dies.push_back({.view = view_of_all(role, s), .index = one.index});
      }
    }
    // Bytes that were a value's until all ops of `free_when` have ended. A value takes bytes of its
    // own size first, then any that are free, and only then new ones: where they lie is nobody's
    // business here.
    struct Bytes {
      std::vector<std::pair<std::uint32_t, std::uint32_t>> free_when = {};  // (clock entry, number)
      bool free_at(const std::uint32_t* begin) const {
        return std::all_of(free_when.begin(), free_when.end(),
                           [&](const auto& need) { return begin[need.first] >= need.second; });
      }
    };
    std::map<std::int64_t, std::vector<Bytes>> pools;  // by size
    auto take = [&](std::int64_t size, const std::uint32_t* begin) -> Bytes& {
      std::vector<Bytes>& own = pools[size];
      const auto is_free = [&](const Bytes& b) { return b.free_at(begin); };
      if (const auto found = std::find_if(own.begin(), own.end(), is_free); found != own.end())
        return *found;
      std::int64_t missing = size;
      std::vector<std::pair<std::int64_t, Bytes>> remainders;
      for (auto pool = pools.rbegin(); pool != pools.rend() && missing > 0; ++pool)
        for (std::size_t i = 0; i < pool->second.size() && missing > 0;) {
          if (!is_free(pool->second[i])) {
            ++i;
            continue;
          }
          if (pool->first > missing)
            remainders.emplace_back(pool->first - missing, std::move(pool->second[i]));
          missing -= std::min(missing, pool->first);
          pool->second.erase(pool->second.begin() + static_cast<std::ptrdiff_t>(i));
        }
      memory.value += missing;
      for (auto& [rest, bytes] : remainders) pools[rest].push_back(std::move(bytes));
      return own.emplace_back();
    };
    std::map<Id, int> live, most;
    std::int64_t most_workspace = 0;
    for (int t = 0; t < steps_ - max_shift_; ++t)
      for (Id o = 0; o < role.ops.size(); ++o) {
        const int step = t - role.ops[o].shift;
        if (step < 0) continue;
        const std::int64_t workspace = workspace_ ? workspace_(out_.program, role, role.ops[o]) : 0;
        const std::uint32_t* begin =
            born[o].empty() && workspace == 0 ? nullptr : local_clock(r, o, step);
        for (const Instance& one : born[o]) {
          const std::size_t instance = hazards.instance_base[one.storage] + one.index;
          Bytes& bytes = take(bytes_of_storage(one.storage), begin);
          bytes.free_when.clear();
          for (Id f : hazards.finals[instance])
            bytes.free_when.emplace_back(dims_[r][f], number(r, f, step));
          most[one.storage] = std::max(most[one.storage], ++live[one.storage]);
        }
        if (workspace > 0) {
          take(workspace, begin).free_when = {{dims_[r][o], number(r, o, step)}};
          most_workspace = std::max(most_workspace, workspace);
        }
        for (const Ref& dead : out_.roles[r].ops[o].dies) --live[role.views[dead.view].storage];
      }
    for (const auto& [s, n] : most) uses[role.storages[s].name] += bytes_of_storage(s) * n;
    if (most_workspace > 0) uses["workspace"] = most_workspace;
    for (auto& [name, bytes] : uses) memory.largest.push_back({name, bytes});
    std::stable_sort(memory.largest.begin(), memory.largest.end(),
                     [](const StorageUse& a, const StorageUse& b) { return a.bytes > b.bytes; });
    out_.memory.push_back(std::move(memory));
  }

  static Id view_of_all(const Role& role, Id storage) {
    for (Id v = 0; v < role.views.size(); ++v)
      if (role.views[v].storage == storage) return v;
    return none;
  }

  LinkedProgram out_ = {};
  Workspace workspace_ = {};
  std::vector<Hazards> hazards_ = {};
  std::vector<std::vector<std::uint32_t>> dims_ = {}, place_ = {};  // [role][op]
  std::uint32_t dimensions_ = 0;
  int max_shift_ = 0, max_lag_ = 0, steps_ = 0;
  std::vector<std::uint32_t> clocks_ = {};  // [step][event][dimension]: before the event starts
  std::vector<std::size_t> sorted_ = {};
  std::vector<std::uint32_t> local_ = {};
};

}  // namespace

LinkedProgram link(Program program, const Workspace& workspace) {
  return Linker(std::move(program), workspace).run();
}
LinkedProgram link(Program program) { return Linker(std::move(program)).run(); }

Program without_redundant_waits(Program program) { return Linker(std::move(program)).prune(); }

}  // namespace rehearse
