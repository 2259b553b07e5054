// The explanation of a prediction, as `simulate --explain` and `validate --row` show it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "engine/execution/explain/explain.h"
#include "engine/job/job.h"

namespace rehearse::study {

/// Explains the analytic schedule of the job (execution::explain). Throws InputError.
execution::Explanation explain(const job::Job& job);

/// `predicted_s`: the step time that the command predicted, in any fidelity.
std::string explanation_text(const execution::Explanation& explanation, double predicted_s);
/// The value of "explain", documented in docs/cli.md.
nlohmann::ordered_json explanation_json(const execution::Explanation& explanation,
                                        double predicted_s);

}  // namespace rehearse::study
