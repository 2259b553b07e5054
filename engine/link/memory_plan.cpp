#include "engine/link/memory_plan.h"

#include <algorithm>
#include <map>
#include <set>

namespace rehearse::link {
namespace {

/// Bytes that a value occupies until all ops of `free_when`, as (clock entry, number), have ended.
struct UsedBytes {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> free_when = {};

  bool free_at(const std::uint32_t* begin) const {
    return std::all_of(free_when.begin(), free_when.end(),
                       [&](const auto& need) { return begin[need.first] >= need.second; });
  }
};

/// The bytes of all values. A value reuses a free block of its own size first, then any free block,
/// and takes new bytes only for the rest. Blocks have no addresses: only their sum matters.
class Pools {
 public:
  /// A block of `size` bytes for a value whose first write starts at clock `begin`.
  UsedBytes& take(std::int64_t size, const std::uint32_t* begin) {
    std::vector<UsedBytes>& own = by_size_[size];
    const auto is_free = [&](const UsedBytes& b) { return b.free_at(begin); };
    if (const auto found = std::find_if(own.begin(), own.end(), is_free); found != own.end())
      return *found;
    std::int64_t missing = size;
    std::vector<std::pair<std::int64_t, UsedBytes>> remainders;
    for (auto pool = by_size_.rbegin(); pool != by_size_.rend() && missing > 0; ++pool)
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
    total_ += missing;
    for (auto& [rest, bytes] : remainders) by_size_[rest].push_back(std::move(bytes));
    return own.emplace_back();
  }
  std::int64_t total() const { return total_; }

 private:
  std::map<std::int64_t, std::vector<UsedBytes>> by_size_ = {};  // by bytes of a block
  std::int64_t total_ = 0;
};

/// Bytes of the values that are alive in the order of ops, and what they were when most was.
class LiveBytes {
 public:
  void add(Part part, std::int64_t bytes) {
    at(now_, part) += bytes, sum_ += bytes;
    if (sum_ > most_bytes_) most_ = now_, most_bytes_ = sum_;
  }
  const Parts& most() const { return most_; }
  std::int64_t most_bytes() const { return most_bytes_; }

 private:
  Parts now_ = {}, most_ = {};
  std::int64_t sum_ = 0, most_bytes_ = 0;
};

struct Instance {
  Id storage = none;
  int index = 0;
};

std::int64_t bytes_of_storage(const program::Role& role, Id s) {
  return role.storages[s].elements * size_of(role.storages[s].dtype);
}

/// The instances of values that a step writes, each with its index in Hazards::first_writers.
std::vector<std::pair<Instance, std::size_t>> written_values(const program::Role& role,
                                                             const Hazards& hazards) {
  std::vector<std::pair<Instance, std::size_t>> out;
  for (Id s = 0; s < role.storages.size(); ++s) {
    if (role.storages[s].life != program::Life::value) continue;
    for (int i = 0; i < role.storages[s].indices; ++i) {
      const std::size_t instance = hazards.instance_base[s] + static_cast<std::size_t>(i);
      if (!hazards.first_writers[instance].empty()) out.push_back({{s, i}, instance});
    }
  }
  return out;
}

/// What has ended before any of these ops starts: the minimum of their clocks.
std::vector<std::uint32_t> before_any(StepClocks& clocks, Id role, const std::vector<Id>& ops,
                                      int step) {
  std::vector<std::uint32_t> out;
  for (Id o : ops) {
    const std::uint32_t* begin = clocks.clock_at_start(role, o, step);
    if (out.empty()) out.assign(begin, begin + clocks.width(role));
    for (std::size_t d = 0; d < out.size(); ++d) out[d] = std::min(out[d], begin[d]);
  }
  return out;
}

/// [storage]: its first view; none if it has no view.
std::vector<Id> first_views(const program::Role& role) {
  std::vector<Id> out(role.storages.size(), none);
  for (Id v = 0; v < role.views.size(); ++v)
    if (Id& first = out[role.views[v].storage]; first == none) first = v;
  return out;
}

}  // namespace

void find_deaths(const program::Role& role, const Hazards& hazards, LinkedRole& linked) {
  const std::vector<Id> view_of = first_views(role);
  for (const auto& [one, instance] : written_values(role, hazards))
    for (Id o : hazards.last_users[instance])
      linked.ops[o].dies.push_back({.view = view_of[one.storage], .index = one.index});
}

RoleMemory plan_memory(const program::Program& program, Id r, const Hazards& hazards,
                       StepClocks& clocks, const Workspace& workspace) {
  const program::Role& role = program.roles[r];
  RoleMemory memory;
  std::map<std::string, std::int64_t> uses;
  const std::vector<Part> parts = parts_of(role);
  std::set<Id> saved;
  for (const program::Op& op : role.ops)
    if (std::holds_alternative<program::Save>(op.work))
      for (const program::Ref& ref : op.refs) saved.insert(role.views[ref.view].storage);
  for (Id s = 0; s < role.storages.size(); ++s) {
    const program::Storage& storage = role.storages[s];
    if (storage.life == program::Life::value) continue;
    const std::int64_t bytes = bytes_of_storage(role, s) * storage.indices * storage.versions;
    if (storage.place == program::Place::host) {
      memory.host += bytes;
      if (saved.contains(s)) memory.snapshots += bytes;
      continue;
    }
    (storage.life == program::Life::state ? memory.state : memory.buffer) += bytes;
    uses[storage.name] += bytes;
    at(memory.parts, parts[s]) += bytes;
  }
  std::vector<std::vector<std::pair<Instance, std::size_t>>> born(role.ops.size());
  std::vector<std::vector<Id>> dead(role.ops.size());  // [op]: storages of values it uses last
  for (const auto& value : written_values(role, hazards)) {
    born[hazards.first_writers[value.second].front()].push_back(value);
    if (role.storages[value.first.storage].place == program::Place::device)
      dead[hazards.last_users[value.second].back()].push_back(value.first.storage);
  }
  Pools pools, host_pools;
  std::map<Id, int> live, most;
  LiveBytes now;
  std::int64_t most_workspace = 0;
  for (int t = 0; t < clocks.unrolled_steps() - clocks.most_shift(); ++t)
    for (Id o = 0; o < role.ops.size(); ++o) {
      const int step = t - role.ops[o].shift;
      if (step < 0) continue;
      for (const auto& [one, instance] : born[o]) {
        const auto& writers = hazards.first_writers[instance];
        std::vector<std::uint32_t> any;
        if (writers.size() > 1) any = before_any(clocks, r, writers, step);
        const bool on_host = role.storages[one.storage].place == program::Place::host;
        UsedBytes& bytes = (on_host ? host_pools : pools)
                               .take(bytes_of_storage(role, one.storage),
                                     any.empty() ? clocks.clock_at_start(r, o, step) : any.data());
        bytes.free_when.clear();
        for (Id f : hazards.last_users[instance])
          bytes.free_when.emplace_back(clocks.entry(r, f), clocks.number(r, f, step));
        if (on_host) continue;
        most[one.storage] = std::max(most[one.storage], ++live[one.storage]);
        now.add(parts[one.storage], bytes_of_storage(role, one.storage));
      }
      const std::int64_t beside = workspace ? workspace(program, role, role.ops[o]) : 0;
      if (beside > 0) {
        pools.take(beside, clocks.clock_at_start(r, o, step)).free_when = {
            {clocks.entry(r, o), clocks.number(r, o, step)}};
        most_workspace = std::max(most_workspace, beside);
        now.add(Part::workspace, beside);
        now.add(Part::workspace, -beside);
      }
      for (Id s : dead[o]) {
        --live[s];
        now.add(parts[s], -bytes_of_storage(role, s));
      }
    }
  memory.value = pools.total();
  memory.host += host_pools.total();
  for (std::size_t p = 0; p < memory.parts.size(); ++p) memory.parts[p] += now.most()[p];
  at(memory.parts, Part::unshared) += memory.value - now.most_bytes();
  for (const auto& [s, n] : most) uses[role.storages[s].name] += bytes_of_storage(role, s) * n;
  if (most_workspace > 0) uses["workspace"] = most_workspace;
  for (auto& [name, bytes] : uses) memory.largest.push_back({name, bytes});
  std::stable_sort(memory.largest.begin(), memory.largest.end(),
                   [](const StorageUse& a, const StorageUse& b) { return a.bytes > b.bytes; });
  return memory;
}

}  // namespace rehearse::link
