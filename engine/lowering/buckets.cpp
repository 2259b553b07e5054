// Which parameter groups of a stage are reduced together, and whose copies meet.
#include <algorithm>
#include <limits>
#include <ranges>

#include "engine/lowering/stage.h"

namespace rehearse {
/// Buckets in the order in which backward completes them. A group completes with the first segment
/// that uses it.
void Stage::make_buckets() {
  std::vector<Id> first_use(model_.groups.size(), none);
  std::vector<Id> segments;
  for (std::size_t c = static_cast<std::size_t>(stage_); c < plan_.stages.size();
       c += static_cast<std::size_t>(plan_.pp))
    segments.insert(segments.end(), plan_.stages[c].begin(), plan_.stages[c].end());
  for (Id s : std::ranges::reverse_view(segments))
    for (Id g : model_.segments[s].groups) first_use[g] = s;

  // Tied groups are used by segments of several stages: their copies meet over a group of their
  // own.
  std::vector<int> stage_of(model_.segments.size(), -1);
  for (std::size_t c = 0; c < plan_.stages.size(); ++c)
    for (Id s : plan_.stages[c]) stage_of[s] = static_cast<int>(c) % plan_.pp;
  struct Users {
    int here = 0;                                            // segments of this stage
    int first = std::numeric_limits<int>::max(), last = -1;  // stages
  };
  std::vector<Users> users_of(model_.groups.size());
  for (Id s = 0; s < model_.segments.size(); ++s)
    for (Id g : model_.segments[s].groups) {
      Users& users = users_of[g];
      users.here += stage_of[s] == stage_;
      users.first = std::min(users.first, stage_of[s]);
      users.last = std::max(users.last, stage_of[s]);
    }

  std::vector<Bucket> made;
  auto fresh = [&](Id completes_at) -> Bucket& {
    made.push_back({.name = "b" + std::to_string(made.size()), .completes_at = completes_at});
    return made.back();
  };
  // Shards must not straddle the seam between split and whole groups, whose gradients have other
  // partial axes, nor may choices among entries: two kinds of buckets then.
  const bool homogeneous = sync_.bucket_per_kind(plan_) && tp_;
  const bool per_segment = sync_.bucket_per_segment(plan_);
  const double limit = sync_.bucket_bytes(plan_, model_);
  struct Open {
    std::size_t bucket = 0;
    double filled = 0;
    bool open = false;
  } kinds[2];
  for (const Id s : std::ranges::reverse_view(segments)) {
    std::vector<Id> complete;
    for (Id g : model_.segments[s].groups)
      if (first_use[g] == s) complete.push_back(g);
    if (per_segment) kinds[0].open = kinds[1].open = false;
    for (Id g : complete) {
      const Users& users = users_of[g];
      const bool tied = users.first != users.last;
      if (tied || (users.here > 1 && per_segment)) {
        Bucket& own = fresh(s);
        own.groups = {g};
        own.tied = tied;
        own.tied_copy = tied && users.first != stage_;
        if (tied) {
          tied_ = Axes{1} << program_.mesh.size();
          std::vector<Id> colour(static_cast<std::size_t>(program_.world_size), none);
          std::set<int> stages;
          for (Id user = 0; user < model_.segments.size(); ++user)
            if (std::ranges::count(model_.segments[user].groups, g) > 0)
              stages.insert(stage_of[user]);
          for (int user : stages) {
            const auto ranks = ranks_of_stage(program_, user);
            for (Id i = 0; i < ranks.size(); ++i) colour[ranks[i]] = i;
          }
          channel(program_, "tied", {.axes = tied_, .colour = std::move(colour)});
        }
        continue;
      }
      Open& kind = kinds[homogeneous && model_.groups[g].split];
      if (!kind.open) {
        fresh(s);
        kind = {.bucket = made.size() - 1, .open = true};
      }
      made[kind.bucket].groups.push_back(g);
      made[kind.bucket].completes_at = s;
      kind.filled +=
          static_cast<double>(elements_of(model_.groups[g], plan_.tp) * size_of(plan_.precision));
      if (kind.filled >= limit && !per_segment) kind.open = false;
    }
  }
  for (Bucket& b : made) {
    std::stable_sort(b.groups.begin(), b.groups.end(),
                     [&](Id x, Id y) { return model_.groups[x].split > model_.groups[y].split; });
    std::int64_t end = 0;
    b.whole_begin = -1;
    for (Id g : b.groups) {
      if (!model_.groups[g].split && b.whole_begin < 0) b.whole_begin = end;
      b.begin.push_back(end);
      end += elements_of(model_.groups[g], plan_.tp);
    }
    b.begin.push_back(end);
    if (b.whole_begin < 0) b.whole_begin = end;
    const std::int64_t parts = plan_.zero > 0 ? plan_.dp : 1;
    b.elements = (end + parts - 1) / parts * parts;
  }
  buckets_ = std::move(made);
  bucket_of_.assign(model_.groups.size(), none);
  for (Id b = 0; b < buckets_.size(); ++b)
    for (Id g : buckets_[b].groups) bucket_of_[g] = b;
}

const Bucket& Stage::bucket_of(Id group) const { return buckets_[bucket_of_[group]]; }

Axes Stage::partial_of(Id group, const Bucket& bucket) const {
  return dp_ | (model_.groups[group].split ? Axes{0} : tp_) | (bucket.tied ? tied_ : Axes{0});
}

}  // namespace rehearse
