// The order in which partitions of gradients go to servers, by priority and credit (BytePS: Jiang
// et al., OSDI 2020, section 4; ByteScheduler: Peng et al., SOSP 2019). Of the partitions that are
// ready, the one nearest to the model's input goes first, because the next step needs it first. A
// program says its order beforehand, so the planner predicts when backward completes each partition
// and how long its way takes, and runs the queue once. Example with a credit of one partition:
//
//   ready     head | mlp 1 | attention 1 | mlp 0 | attention 0 | embedding
//   goes      head ........| attention 1 ........| embedding ......| attention 0 ...| mlp 0 | mlp 1
#pragma once
#include <vector>

#include "engine/costs/profile.h"
#include "engine/job/job.h"

namespace rehearse::planner {

/// Numbers of partitions (methods::partitions_of) in the order of their exchange, for
/// plan.exchange.machines.push_order. `plan` must be prepared and have a credit.
std::vector<Id> push_order(const plan::Plan& plan, const model::ModelSpec& model,
                           const cluster::Cluster& cluster, const costs::Profile* profile);

/// The job with that order. Jobs without a credit and those with a plan file stay as they are.
job::Job with_push_order(job::Job job, const costs::Profile* profile);

}  // namespace rehearse::planner
