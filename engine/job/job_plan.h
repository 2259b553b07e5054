// The cluster and the plan of a job: from its keys, or from the plan file that it names. This is
// the second half of read_job. Internal to engine/job.
#pragma once
#include <string>

#include "engine/base/files/config.h"
#include "engine/base/refusal.h"
#include "engine/job/job.h"
#include "engine/job/job_keys.h"

namespace rehearse::job {

/// Calls f; adds the place of `key` and `hint` to an InputError that f throws. A Refused names its
/// own key.
template <class F>
auto at_key(const Config& section, const std::string& key, F f, const std::string& hint = "") {
  try {
    return f();
  } catch (const Refused&) {
    throw;
  } catch (const InputError& e) {
    throw section.error(key, e.what() + hint);
  }
}

/// Fills cluster and plan from [cluster], [method] and [train], with defaults. `to_plan`: as in
/// read_job.
void state_plan(const Config& file, const JobKeys& keys, bool to_plan, Job& job);
/// Fills cluster and plan from the plan file that the job names. Throws InputError when another key
/// of the job contradicts the plan.
void read_plan(const Config& file, const JobKeys& keys, Job& job);
/// Completes the plan and checks it against model and method (methods::prepare). Throws InputError
/// when the method's name implies another value than the file states.
void prepare_plan(const Config& method, Job& job);

}  // namespace rehearse::job
