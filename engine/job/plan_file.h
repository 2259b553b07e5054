// Plan files: a plan, what it was made for and why, as strict, versioned TOML (docs/plans.md).
// A plan file is immutable: it carries a hash of its own plan, and one that was edited is refused.
// to_toml and load_plan are exact inverses: the plan that is read compiles to the program of the
// plan that was written.
#pragma once
#include <cstdint>
#include <string>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"
#include "engine/job/identity.h"
#include "engine/model/model.h"
#include "engine/plan/decision.h"
#include "engine/plan/plan.h"

namespace rehearse::job {

/// What a plan was made for: names for people, hashes for machines.
struct MadeFor {
  std::string model = {}, cluster = {};  // as `describe` says
  std::uint64_t model_hash = 0, cluster_hash = 0;
  std::uint64_t profile_hash = 0;  // 0: made without a profile
  friend bool operator==(const MadeFor&, const MadeFor&) = default;
};
MadeFor made_for(const model::ModelSpec& model, const cluster::Cluster& cluster,
                 const costs::Profile* profile);

struct PlanFile {
  static constexpr int version = 1;
  MadeFor made_for = {};
  plan::Decision why = {};  // with the plan; the runners-up without theirs
  std::uint64_t hash = 0;
};

/// Of the plan and what it was made for, not of the reasons.
std::uint64_t hash_of(const plan::Plan& plan, const MadeFor& made_for,
                      const model::ModelSpec& model, const cluster::Cluster& cluster);
/// `decision.plan` must be complete.
std::string to_toml(const plan::Decision& decision, const MadeFor& made_for,
                    const model::ModelSpec& model, const cluster::Cluster& cluster);

/// Throws InputError (file, line, key, value) on a key that is unknown or missing, another version,
/// a plan of another model or cluster (and says what differs), or one that was edited.
PlanFile load_plan_file(const std::string& path, const model::ModelSpec& model,
                        const cluster::Cluster& cluster);
PlanFile parse_plan_file(const std::string& text, const std::string& file,
                         const model::ModelSpec& model, const cluster::Cluster& cluster);
/// The plan alone.
plan::Plan load_plan(const std::string& path, const model::ModelSpec& model,
                     const cluster::Cluster& cluster);
/// How many ranks the plan in this file has; for clusters that are sized by that.
int world_size_of_plan(const std::string& path);

}  // namespace rehearse::job
