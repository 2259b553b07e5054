#include "study/comparison.h"

#include "engine/base/errors.h"
#include "study/decision.h"
#include "study/fault_study.h"

namespace rehearse::study {
namespace {

std::vector<ComparedMethod> load_rows(const JobSource& source, const std::string& list) {
  std::vector<MethodChoice> choices = parse_methods(list);
  const job::Job job = load(source);  // throws here if the job is wrong, not in every row
  if (list == "all" && !job.plan_file.empty())
    choices.insert(choices.begin(), {.label = "plan", .method = "plan"});
  for (const MethodChoice& choice : choices)
    if (choice.method == "plan" && job.plan_file.empty())
      throw InputError("--methods plan: the job names no plan; [method] plan does");
  const auto loaded = [&](const MethodChoice& choice) {
    ComparedMethod row{.choice = choice};
    JobSource with = source;
    with.set = overrides_for(choice, job, source.set);
    try {
      row.job = load(with);
    } catch (const InputError& e) {
      row.refusal = e.what();
    }
    return row;
  };
  std::vector<ComparedMethod> rows;
  for (const MethodChoice& choice : choices) {
    rows.push_back(loaded(choice));
    const auto unlike = list == "all" ? with_shares_by_speed(choice, job) : std::nullopt;
    if (!unlike || !rows.back().job) continue;
    // Where all replicas are equally fast it would be the same row again.
    if (ComparedMethod row = loaded(*unlike); row.job && !row.job->plan.schedule.shares.empty())
      rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::vector<ComparedMethod> compare_methods(const JobSource& source, const std::string& list,
                                            const StudyOptions& options) {
  std::vector<ComparedMethod> rows = load_rows(source, list);
  for (ComparedMethod& row : rows) {
    if (!row.job) continue;
    try {
      row.decided = decide_plan(*row.job, options.progress);
      row.study = predict(*row.job, options);
      if (row.decided) add_warnings(*row.decided, *row.study);
      warn_of_trace(*row.job, row.study->warnings);
    } catch (const InputError& e) {
      row.refusal = e.what();
    }
  }
  return rows;
}

}  // namespace rehearse::study
