// `rehearse plan`: finds the best plan for a job's model on its cluster. It can print the score of
// each choice, the alternatives that lost, and what would change the decision.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands/plan/plan_picture.h"
#include "cli/commands/study_options.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/spawn.h"
#include "cli/console/teller.h"
#include "engine/base/files/files.h"
#include "study/load.h"
#include "study/long_runs/fault_study.h"
#include "study/planning/decision.h"
#include "study/planning/rehearsal.h"
#include "study/prediction/study.h"

namespace rehearse::cli {
namespace {

struct PlanOptions {
  std::string job = {}, profile = {}, output = {}, report = {};
  int budget = 0;
  bool explain = false, no_rescore = false;
};

/// Writes the report: the plan's step under one seed, with its trace beside the trace of the
/// fastest baseline.
void write_report(const Context& context, const PlanOptions& options, job::Job job,
                  const plan::Plan& plan, const std::string& python, Teller& teller) {
  job.plan = plan;
  const TemporaryFolder folder;
  study::StudyOptions how{.seeds = 1};
  how.trace = folder.file("plan.json");
  how.progress = &teller;
  const study::Study planned = study::predict(job, how);
  study::Rehearsal against;
  finish_rehearsal(against, job, planned, how, options.job, context.set, baseline_traces(folder));
  write_file(folder.file("simulate.json"), text_of(with_header(context, to_json(planned))));
  std::vector<std::string> arguments = plan_pictures(job, against, folder, how.trace);
  arguments.insert(arguments.begin(), folder.file("simulate.json"));
  arguments.insert(arguments.end(), {"-o", options.report, "--quiet"});
  run_report(python, arguments);
}

/// The command that rehearses a plan that was written: the job's, with the plan for its [method].
std::string use_of_plan(const Context& context, const PlanOptions& options) {
  std::string out = "rehearse simulate " + quoted(options.job);
  for (const std::string& one : context.set)
    if (!one.starts_with("method")) out += " --set " + quoted(one);
  return out + " --set method= --set " + quoted("method.plan=" + options.output);
}

int run_plan(const Context& context, const PlanOptions& options) {
  if (!options.output.empty()) check_writable("-o", options.output);
  if (!options.report.empty()) check_report(options.report);
  const std::string python = options.report.empty() ? "" : need_python("--report");
  job::Job job = study::load_to_plan({.file = options.job, .set = context.set});
  if (!options.profile.empty()) job.profile = costs::ProfileOnce(options.profile);
  Teller teller(context);
  const study::PlanFlags flags{.budget = options.budget,
                               .rescore = !options.no_rescore,
                               .fewer_devices = true,
                               .progress = &teller};
  plan::Decision decision = study::decide_with_progress(job, flags);
  if (!options.output.empty()) write_file(options.output, study::plan_text(decision, job));
  study::warn_of_trace(job, decision.warnings);
  study::warn_of_encryption(job, decision.warnings);
  if (!options.report.empty()) write_report(context, options, job, decision.plan, python, teller);
  teller.done();
  if (context.json)
    std::cout << text_of(with_header(context, study::to_json(decision, job)));
  else
    std::cout << (options.explain ? study::explain(decision, job) : study::brief(decision, job));
  if (!context.json && !options.output.empty())
    std::cout << "\nrehearse it: " << use_of_plan(context, options) << "\n";
  return good;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  const Command command(app, context, "plan",
                        "Decide the best plan for a job's model on its cluster",
                        "  rehearse plan experiments/paper-ddp.toml --explain -o plan.toml\n"
                        "  rehearse simulate experiments/paper-ddp.toml --set method= \\\n"
                        "    --set method.plan=plan.toml\n"
                        "  rehearse plan experiments/paper-ddp.toml --budget 500 --json\n"
                        "  rehearse plan experiments/paper-ddp.toml --set method.tp=1");
  auto options = std::make_shared<PlanOptions>();
  command.job(options->job).required();
  command.flag("--explain", options->explain,
               "Print the score of each choice, what lost to it and what would change it");
  command.option("--profile", options->profile, "Measured times; default: cluster.profile")
      .type("FILE")
      .existing_file();
  command.option("-o,--output", options->output, "Write the plan, for method.plan").type("FILE");
  command.option("--report", options->report, "Write an HTML report with pictures of the plan")
      .type("FILE");
  command.option("--budget", options->budget, "Candidates to dry-run at most; 0: no limit")
      .between(0, 1 << 30)
      .shows_default();
  command.flag("--no-rescore", options->no_rescore,
               "Trust the dry run: no fluid simulation of the best candidates");
  command.runs([&context, options] { return run_plan(context, *options); });
}

}  // namespace rehearse::cli
