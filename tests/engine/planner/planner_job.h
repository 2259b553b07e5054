// A job to plan, as the tests of the planner write it.
#pragma once
#include <string>

#include "engine/job/job.h"

namespace rehearse::planner {

inline job::Job job_of(const std::string& model, const std::string& cluster,
                       const std::string& more = "", const std::string& method = "ddp") {
  return job::parse_job_to_plan("model.name = \"" + model + "\"\ncluster.name = \"" + cluster +
                                    "\"\nmethod.name = \"" + method + "\"\n" + more,
                                "job.toml");
}

}  // namespace rehearse::planner
