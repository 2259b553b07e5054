// Job files, through compiling, linking and an analytic simulation.
#include "engine/job/job.h"

#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void job(std::string_view input) {
  if (has_large(input, {":"}, 16)) return;  // of a cluster's name
  const std::string text(input);
  accepts([&] { job::parse_job_to_plan(text, "job.toml"); });
  accepts([&] { simulate(text); });
}

}  // namespace rehearse::fuzz
