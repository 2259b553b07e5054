// Which devices compute what under a plan: the answer of the planner as people check it.
#pragma once
#include <string>

#include "engine/cluster/cluster.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::study {

/// A table after an empty line: for each pipeline stage and kind of device, the stage's segments,
/// the number of such devices, and the samples that each takes at once. Empty where all devices do
/// the same. `plan` is complete.
std::string device_work_text(const plan::Plan& plan, const model::ModelSpec& model,
                             const cluster::Cluster& cluster);

}  // namespace rehearse::study
