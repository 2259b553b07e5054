// Fuzz target for job files: parses a job, compiles and links its program, and simulates it
// (analytic).
#include "engine/job/job.h"

#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void job(std::string_view input) {
  if (has_large(input, {":"}, 16)) return;  // nodes in a cluster's name
  const std::string text(input);
  accepts([&] { job::parse_job_to_plan(text, "job.toml"); });
  accepts([&] { simulate(text); });
}

}  // namespace rehearse::fuzz
