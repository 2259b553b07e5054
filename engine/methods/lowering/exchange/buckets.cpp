#include "engine/methods/lowering/exchange/buckets.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <set>
#include <utility>

#include "engine/methods/lowering/exchange/gradient_sync.h"
#include "engine/methods/lowering/roles.h"

namespace rehearse::methods {

Id storage_of(program::RoleBuilder& role, const Bucket& bucket, const char* prefix,
              program::Life life) {
  return role.storage({.name = prefix + bucket.name, .life = life, .elements = bucket.elements});
}

program::Axes tied_axis(const program::Program& program) {
  return program::Axes{1} << program.mesh.size();
}

std::vector<Bucket> make_buckets(program::Program& program, const plan::Plan& plan,
                                 const model::ModelSpec& model, int stage,
                                 const GradientSync& sync) {
  std::vector<Id> first_use(model.groups.size(), none);
  std::vector<Id> segments;
  for (std::size_t c = static_cast<std::size_t>(stage); c < plan.placement.stages.size();
       c += static_cast<std::size_t>(plan.mesh.pp))
    segments.insert(segments.end(), plan.placement.stages[c].begin(),
                    plan.placement.stages[c].end());
  for (Id s : std::ranges::reverse_view(segments))
    for (Id g : model.segments[s].groups) first_use[g] = s;

  // Tied groups are used by segments of several stages. Their copies meet on a channel of their
  // own.
  std::vector<int> stage_of(model.segments.size(), -1);
  for (std::size_t c = 0; c < plan.placement.stages.size(); ++c)
    for (Id s : plan.placement.stages[c]) stage_of[s] = static_cast<int>(c) % plan.mesh.pp;
  struct Users {
    int here = 0;                                            // segments of this stage that use it
    int first = std::numeric_limits<int>::max(), last = -1;  // stages that use it
  };
  std::vector<Users> users_of(model.groups.size());
  for (Id s = 0; s < model.segments.size(); ++s)
    for (Id g : model.segments[s].groups) {
      Users& users = users_of[g];
      users.here += stage_of[s] == stage;
      users.first = std::min(users.first, stage_of[s]);
      users.last = std::max(users.last, stage_of[s]);
    }

  std::vector<Bucket> made;
  auto fresh = [&](Id completes_at) -> Bucket& {
    made.push_back({.name = "b" + std::to_string(made.size()), .completes_at = completes_at});
    return made.back();
  };
  // Gradients of split and of whole groups are partial over different axes. One shard or one select
  // must not mix them, so the sync may ask for separate buckets.
  const bool homogeneous = sync.bucket_per_kind(plan) && axis_named(program, "tp");
  const bool per_segment = sync.bucket_per_segment(plan);
  const double limit = sync.bucket_bytes(plan, model);
  struct Open {
    std::size_t bucket = 0;
    double filled = 0;
    bool open = false;
  } kinds[2];
  for (const Id s : std::ranges::reverse_view(segments)) {
    std::vector<Id> complete;
    for (Id g : model.segments[s].groups)
      if (first_use[g] == s) complete.push_back(g);
    if (per_segment) kinds[0].open = kinds[1].open = false;
    for (Id g : complete) {
      const Users& users = users_of[g];
      const bool tied = users.first != users.last;
      if (tied || (users.here > 1 && per_segment)) {
        Bucket& own = fresh(s);
        own.groups = {g};
        own.tied = tied;
        own.tied_copy = tied && users.first != stage;
        if (tied) {
          std::vector<Id> colour(static_cast<std::size_t>(program.world_size), none);
          std::set<int> stages;
          for (Id user = 0; user < model.segments.size(); ++user)
            if (std::ranges::count(model.segments[user].groups, g) > 0)
              stages.insert(stage_of[user]);
          for (int user : stages) {
            const auto ranks = ranks_of_stage(program, user);
            for (Id i = 0; i < ranks.size(); ++i) colour[ranks[i]] = i;
          }
          channel(program, "tied", {.axes = tied_axis(program), .colour = std::move(colour)});
        }
        continue;
      }
      Open& kind = kinds[homogeneous && model.groups[g].split];
      if (!kind.open) {
        fresh(s);
        kind = {.bucket = made.size() - 1, .open = true};
      }
      made[kind.bucket].groups.push_back(g);
      made[kind.bucket].completes_at = s;
      kind.filled +=
          static_cast<double>(elements_of(model.groups[g], plan.mesh.tp) * size_of(plan.precision));
      if (kind.filled >= limit && !per_segment) kind.open = false;
    }
    if (sync.closes_after(plan, s)) kinds[0].open = kinds[1].open = false;
  }
  for (Bucket& b : made) {
    std::stable_sort(b.groups.begin(), b.groups.end(),
                     [&](Id x, Id y) { return model.groups[x].split > model.groups[y].split; });
    std::int64_t end = 0;
    b.whole_begin = -1;
    for (Id g : b.groups) {
      if (!model.groups[g].split && b.whole_begin < 0) b.whole_begin = end;
      b.begin.push_back(end);
      end += elements_of(model.groups[g], plan.mesh.tp);
    }
    b.begin.push_back(end);
    if (b.whole_begin < 0) b.whole_begin = end;
    const std::int64_t parts = sync.equal_parts(plan) ? plan.shards() : 1;
    b.elements = (end + parts - 1) / parts * parts;
  }
  return made;
}

}  // namespace rehearse::methods
