#include "study/comparison.h"

#include "engine/base/errors.h"
#include "engine/planner/memory/needs.h"
#include "study/long_runs/fault_study.h"
#include "study/planning/decision.h"

namespace rehearse::study {
namespace {

/// `job`: of the source.
ComparedMethod load_row(const MethodChoice& choice, const JobSource& source, const job::Job& job) {
  ComparedMethod row{.choice = choice};
  JobSource with = source;
  with.set = overrides_for(choice, job, source.set);
  try {
    row.job = load(with);
  } catch (const InputError& e) {
    row.refusal = row.brief = e.what();
  }
  return row;
}

std::vector<ComparedMethod> load_rows(const JobSource& source, const job::Job& job,
                                      const std::string& list) {
  std::vector<MethodChoice> choices = parse_methods(list);
  if (list == "all" && !job.plan_file.empty())
    choices.insert(choices.begin(), {.label = "plan", .method = "plan"});
  for (const MethodChoice& choice : choices)
    if (choice.method == "plan" && job.plan_file.empty())
      throw InputError("--methods plan: the job names no plan; [method] plan does");
  std::vector<ComparedMethod> rows;
  for (const MethodChoice& choice : choices) {
    rows.push_back(load_row(choice, source, job));
    const auto unlike = list == "all" ? with_shares_by_speed(choice, job) : std::nullopt;
    if (!unlike || !rows.back().job) continue;
    // Where all replicas are equally fast it would be the same row again.
    if (ComparedMethod row = load_row(*unlike, source, job);
        row.job && !row.job->plan.schedule.shares.empty())
      rows.push_back(std::move(row));
  }
  return rows;
}

/// Predicts the row, or says why its method cannot run.
void predict_row(ComparedMethod& row, const StudyOptions& options) {
  try {
    row.decided = decide_plan(*row.job, options.progress);
    row.study = predict(*row.job, options);
    if (row.decided) add_warnings(*row.decided, *row.study);
    warn_of_trace(*row.job, row.study->warnings);
  } catch (const planner::DoesNotFit& e) {
    row.refusal = e.what(), row.brief = e.brief, row.changes = e.changes;
  } catch (const InputError& e) {
    row.refusal = row.brief = e.what();
  }
}

}  // namespace

std::vector<ComparedMethod> compare_methods(const JobSource& source, const std::string& list,
                                            const StudyOptions& options, bool fit) {
  const job::Job job = load(source);  // throws here if the job is wrong, not in every row
  std::vector<ComparedMethod> rows = load_rows(source, job, list);
  for (ComparedMethod& row : rows) {
    if (!row.job) continue;
    predict_row(row, options);
    const auto changed = fit ? with_changes(row.choice, row.changes) : std::nullopt;
    if (!changed) continue;
    ComparedMethod again = load_row(*changed, source, job);
    if (again.job) predict_row(again, options);
    if (again.study) row = std::move(again);
  }
  return rows;
}

}  // namespace rehearse::study
