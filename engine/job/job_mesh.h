// Mesh sizes, global batch and micro-batches of a job. Values that [method] and [train] leave out
// follow from the world size, the method and the model. A mesh that does not fit is refused, and
// the message names the nearest mesh that fits. Internal to engine/job.
#pragma once
#include "engine/base/files/config.h"
#include "engine/job/job_keys.h"
#include "engine/methods/strategy.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::job {

/// Fills the mesh sizes, global batch and micro-batches of `plan` for `world` ranks, servers
/// included. Throws InputError.
void fill_mesh_and_batch(const Config& file, const JobKeys& keys, int world,
                         const methods::Strategy& method, const model::ModelSpec& model,
                         plan::Plan& plan);
/// For jobs whose plan the planner decides: takes the stated mesh sizes. Of the others, pp and tp
/// become 1 and dp the rest of the world. Throws InputError when no mesh has the stated sizes.
void leave_mesh(const Config& file, const JobKeys& keys, int world, const model::ModelSpec& model,
                plan::Plan& plan);
/// The product of the sizes that are stated (none counts as 1), at most the largest int.
int product(const std::vector<std::optional<std::int64_t>>& sizes);

}  // namespace rehearse::job
