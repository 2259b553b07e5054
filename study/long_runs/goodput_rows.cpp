#include "study/long_runs/goodput_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/hints.h"
#include "engine/base/names.h"

namespace rehearse::study {
namespace {

/// The values that a list names; of an empty list the job's own.
template <class E>
std::vector<E> values_of(const std::string& option, const std::string& list, E own) {
  if (list.empty()) return {own};
  std::vector<E> out;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    const auto one = from_name<E>(name);
    if (!one)
      throw InputError(fmt::format("{} {}: \"{}\" is not one of {}{}", option, list, name,
                                   fmt::join(names_of<E>(), ", "),
                                   did_you_mean(name, names_of<E>())));
    if (std::ranges::find(out, *one) == out.end()) out.push_back(*one);
    begin = end + 1;
  }
  return out;
}

}  // namespace

LongRunOptions long_run_options(const JobSource& source, Seconds duration,
                                const StudyOptions& step) {
  LongRunOptions out{.source = source, .duration = duration, .seeds = step.seeds, .step = step};
  out.step.seeds = std::min(step.seeds, most_step_seeds);
  return out;
}

std::vector<LongRunRow> compare_long_runs(LongRuns& runs, const job::Job& job,
                                          const LongRunChoices& choices, Progress* progress) {
  const auto policies =
      values_of(choices.option + "recovery", choices.recovery, job.recovery.policy);
  const auto kinds =
      values_of(choices.option + "checkpoint", choices.checkpoint, job.checkpoint.kind);
  std::vector<LongRunRow> rows;
  for (const job::RecoveryPolicy policy : policies)
    for (const job::CheckpointKind kind : kinds) {
      job::Recovery recovery = job.recovery;
      recovery.policy = policy;
      job::Checkpoint checkpoint = job.checkpoint;
      checkpoint.kind = kind;
      LongRunRow& row = rows.emplace_back();
      row.label = fmt::format("{}, {}", name_of(policy), name_of(kind));
      if (progress != nullptr) progress->say(row.label);
      try {
        row.run = runs.run(recovery, checkpoint);
      } catch (const InputError& error) {
        row.refusal = error.what();
      }
    }
  if (std::ranges::none_of(rows, [](const LongRunRow& row) { return row.run.has_value(); }))
    throw InputError(rows.front().refusal);
  return rows;
}

nlohmann::ordered_json to_json(const std::vector<LongRunRow>& rows, const LongRuns& runs) {
  using Json = nlohmann::ordered_json;
  Json all = Json::array(), refused = Json::array();
  for (const LongRunRow& row : rows) {
    if (!row.run) {
      refused.push_back({{"label", row.label}, {"reason", row.refusal}});
      continue;
    }
    Json one = to_json(*row.run, runs.step(), runs.failures());
    one["label"] = row.label;
    all.push_back(std::move(one));
  }
  return {{"schema_version", 1}, {"long_runs", std::move(all)}, {"cannot_run", std::move(refused)}};
}

}  // namespace rehearse::study
