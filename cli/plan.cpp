// `rehearse plan`: the best plan for a job's model on its cluster, with the score of each choice,
// what lost to it and what would change the decision.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/decision.h"
#include "cli/files.h"

namespace rehearse {
namespace {

struct Options {
  std::string job = {}, profile = {}, output = {};
  int budget = 0;
  bool explain = false, no_rescore = false;
};

int run_plan(const Context& context, const Options& options) {
  if (!options.output.empty()) check_writable("-o", options.output);
  Job job = load_job_to_plan(options.job, context.set);
  if (!options.profile.empty()) job.profile = options.profile;
  PlanFlags flags{.budget = options.budget, .rescore = !options.no_rescore};
  flags.progress = shows_progress(context);
  const Decision decision = decide_with_progress(job, flags);
  if (!options.output.empty()) write_file(options.output, plan_text(decision, job));
  if (context.json)
    std::cout << to_json(decision, job).dump(2) << "\n";
  else
    std::cout << (options.explain ? explain(decision) : brief(decision));
  return good;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  CLI::App* command =
      add_command(app, "plan", "Decide the best plan for a job's model on its cluster",
                  "  rehearse plan experiments/paper-ddp.toml --explain -o plan.toml\n"
                  "  rehearse simulate experiments/paper-ddp.toml --set method.name= \\\n"
                  "    --set method.plan=plan.toml\n"
                  "  rehearse plan experiments/paper-ddp.toml --budget 500 --json\n"
                  "  rehearse plan experiments/paper-ddp.toml --set method.tp=1");
  auto options = std::make_shared<Options>();
  add_job(*command, options->job);
  command->add_flag("--explain", options->explain,
                    "Print the score of each choice, what lost to it and what would change it");
  command->add_option("--profile", options->profile, "Measured times; default: cluster.profile")
      ->type_name("FILE")
      ->check(CLI::ExistingFile);
  command->add_option("-o,--output", options->output, "Write the plan, for method.plan")
      ->type_name("FILE");
  command->add_option("--budget", options->budget, "Candidates to dry-run at most; 0: no limit")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  command->add_flag("--no-rescore", options->no_rescore,
                    "Trust the dry run: no fluid simulation of the best candidates");
  command->callback([&context, options] {
    context.run = [&context, options] { return run_plan(context, *options); };
  });
}

}  // namespace rehearse
