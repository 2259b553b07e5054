// Which gradients share a buffer in Horovod (Sergeev & Del Balso 2018). A coordinator wakes up once
// a cycle and fuses what has become ready on all ranks since the last one, up to the size of the
// buffer. A program says beforehand which gradients share a buffer, so the planner predicts when
// each of them is ready. Example with a cycle of 1 ms and layers whose backward takes 0.4 ms:
//
//   ms        0        1        2        3
//   ready     | L9  L8 | L7 L6 L5 | L4 L3 |
//   buffers   |  {L9,L8}  {L7,L6,L5}  {L4,L3}
#pragma once
#include <vector>

#include "engine/costs/profile.h"
#include "engine/job/job.h"

namespace rehearse::planner {

/// By segment: seconds from the start of the last micro-batch's backward to the end of its own, on
/// the slowest rank. Negative: it has no backward. `plan` must be prepared.
std::vector<double> ready_after(const plan::Plan& plan, const model::ModelSpec& model,
                                const cluster::Cluster& cluster, const costs::Profile* profile);

/// The segments after whose backward a cycle ends, for plan.exchange.fusion.fused_after: the next
/// segment with parameters is ready in a later cycle. A cycle of 0 s ends after each segment.
/// `plan` must be prepared.
std::vector<Id> ends_of_cycles(const plan::Plan& plan, const model::ModelSpec& model,
                               const cluster::Cluster& cluster, const costs::Profile* profile);

/// The job with what its method's coordinator does in a cycle (Strategy::combines.cycles); other
/// jobs, and those with a plan file, stay as they are. With `job.autotune`, bucket and cycle_time
/// are those with the least predicted time of a step, over Horovod's ranges (up to 128 MiB, up to
/// 100 ms); a key that the job states keeps its value.
job::Job with_cycles(job::Job job, const costs::Profile* profile);

}  // namespace rehearse::planner
