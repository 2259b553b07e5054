// `rehearse sweep --on`: the points are dealt to the tasks of a job of a batch system, each of
// which is a `rehearse sweep --shard`. What its tasks did not bring is submitted again.
#pragma once
#include <string>
#include <vector>

#include "cli/console/context.h"
#include "cli/console/teller.h"
#include "engine/base/units.h"
#include "study/sweep/sweep.h"

namespace rehearse::cli {

struct SweepOn {
  std::string system = {};                  // as after --on
  std::string file = {}, folder = {};       // as on the command line
  int shards = 0;                           // 0: chosen here
  int jobs = 0;                             // points of a task at a time; 0: one
  std::vector<std::string> arguments = {};  // of the user, for the system
  Seconds wait = {};                        // 0: for ever
};

/// Computes the points that `rows` lacks, and reads what the folder has in the end. Returns the
/// exit status: 128 + n after signal n; `failed` when points have no result, after it has said on
/// standard error which, and where the logs of their tasks lie. Throws InputError when the system
/// is not there or refuses, BackendError when it does not answer or `wait` is over.
int compute_on(const Context& context, const SweepOn& how, const std::vector<study::Point>& points,
               Teller& teller, study::Rows& rows);

}  // namespace rehearse::cli
