// Mesh, batch and micro-batches of a job: what [method] and [train] leave out follows from the
// world, the method and the model; what does not fit is refused with the nearest that does. Private
// to Job.
#pragma once
#include "engine/base/config.h"
#include "engine/job/job_keys.h"
#include "engine/methods/strategy.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::job {

/// Sizes of the mesh, global batch and micro-batches of `world` ranks. Throws InputError.
void fill_mesh_and_batch(const Config& file, const JobKeys& keys, int world,
                         const methods::Strategy& method, const model::ModelSpec& model,
                         plan::Plan& plan);
/// What is stated of the mesh, the rest 1 or all: a planner decides.
/// Throws InputError where no mesh has the sizes that are stated.
void leave_mesh(const Config& file, const JobKeys& keys, int world, const model::ModelSpec& model,
                plan::Plan& plan);
/// The product of the sizes that are stated, at most the largest int.
int product(const std::vector<std::optional<std::int64_t>>& sizes);

}  // namespace rehearse::job
