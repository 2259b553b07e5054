// Plan files: strict, versioned TOML with a plan, the model and cluster that it was made for, and
// the reasons for it (docs/plans.md). A plan file must not be edited: it contains a hash of its
// plan, and the reader refuses a file whose hash does not match. to_toml and load_plan are exact
// inverses, so the plan that is read compiles to the same program as the plan that was written.
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

struct Job;

/// The model, cluster and profile that a plan was made for: as text for people, as hashes for
/// checks.
struct MadeFor {
  std::string model = {}, cluster = {};  // the text of describe() (identity.h)
  std::uint64_t model_hash = 0, cluster_hash = 0;
  std::uint64_t profile_hash = 0;  // 0: planned without a profile
  friend bool operator==(const MadeFor&, const MadeFor&) = default;
};
/// `profile`: null when the plan was made without one.
MadeFor made_for(const model::ModelSpec& model, const cluster::Cluster& cluster,
                 const costs::Profile* profile);

struct PlanFile {
  static constexpr int version = 1;
  MadeFor made_for = {};
  plan::Decision why = {};  // contains the plan; runners-up are text only, without plans
  std::uint64_t hash = 0;   // hash_of the plan, as the file states it
};

/// Hash of the plan and of the hashes in `made_for`, without the reasons and descriptions. Throws
/// ProgramError when the plan is not complete.
std::uint64_t hash_of(const plan::Plan& plan, const MadeFor& made_for,
                      const model::ModelSpec& model, const cluster::Cluster& cluster);
/// The text of a plan file. Throws ProgramError when `decision.plan` is not complete.
std::string to_toml(const plan::Decision& decision, const MadeFor& made_for,
                    const model::ModelSpec& model, const cluster::Cluster& cluster);
/// The same, of a plan for the model and the cluster of `job`. `profile`: as in made_for.
std::string to_toml(const plan::Decision& decision, const Job& job, const costs::Profile* profile);

/// Throws InputError (file, line, key, value) when a key is unknown or missing, the version is
/// another one, the plan was made for another model or cluster (the message says what differs), or
/// the plan was edited.
PlanFile load_plan_file(const std::string& path, const model::ModelSpec& model,
                        const cluster::Cluster& cluster);
/// Reads the plan file from `text`. Error messages call it `file`.
PlanFile parse_plan_file(const std::string& text, const std::string& file,
                         const model::ModelSpec& model, const cluster::Cluster& cluster);
/// Only the plan of load_plan_file.
plan::Plan load_plan(const std::string& path, const model::ModelSpec& model,
                     const cluster::Cluster& cluster);
/// The world size of the plan in this file. Reads no other keys, so that the local machine's
/// cluster can be sized before the plan is read.
int world_size_of_plan(const std::string& path);

}  // namespace rehearse::job
