// Logs of trainers in JSON Lines, one object a step, as `rehearse train` writes metrics.jsonl. For
// a fit, a log is a table of step times that all belong to one job.
#pragma once
#include <string>
#include <string_view>

namespace rehearse::study {

/// Whether the text begins with lines that are JSON objects, one of which has the time of a step
/// under a name that trainers give it.
bool is_step_log(std::string_view text);

/// The log as a table of up to five rows, each the median of consecutive steps, by which its name
/// calls them. Has the column `tokens_per_step` where the log says their rate. The first tenth of
/// the steps does not count: there, caches and clocks warm up. For texts that is_step_log accepts.
/// Throws InputError, which names `file`, when a line is no JSON object or a time is no positive
/// number.
std::string step_table(const std::string& text, const std::string& file);

}  // namespace rehearse::study
