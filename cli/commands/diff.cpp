// `rehearse diff`: what differs between two jobs, what that costs, and where in the step.
#include <iostream>
#include <memory>

#include "cli/commands/study_options.h"
#include "cli/console/command.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/teller.h"
#include "study/difference.h"

namespace rehearse::cli {
namespace {

struct DiffOptions : StudyFlags {
  std::string other = {}, drawn = {};
  std::vector<std::string> set_a = {}, set_b = {};
};

study::JobSource source(const std::string& file, std::vector<std::string> set,
                        const std::vector<std::string>& own) {
  set.insert(set.end(), own.begin(), own.end());
  return {.file = file, .set = std::move(set)};
}

int run_diff(const Context& context, const DiffOptions& options) {
  Teller teller(context);
  const study::StudyOptions how = study_options(options, teller);
  const std::string python = check_result_file(options.drawn);
  const study::Difference found =
      study::difference_of(source(options.job, context.set, options.set_a),
                           source(options.other, context.set, options.set_b), how);
  const nlohmann::ordered_json json = with_header(context, to_json(found));
  if (!options.drawn.empty()) write_result_file(options.drawn, text_of(json), python);
  teller.done();
  std::cout << (context.json ? text_of(json) : describe(found));
  return good;
}

}  // namespace

void add_diff(CLI::App& app, Context& context) {
  const Command command(
      app, context, "diff",
      "Say what differs between two jobs, what it costs, and where in the step",
      "  rehearse diff experiments/paper-ddp.toml experiments/paper-megatron.toml\n"
      "  rehearse diff JOB.toml JOB.toml --set-b method.name=zero3 -o diff.svg\n"
      "  rehearse diff JOB.toml JOB.toml --set-a method.plan=a.toml --set-b method.plan=b.toml");
  auto options = std::make_shared<DiffOptions>();
  command.option("A.toml", options->job, "A job (docs/job.md)").required();
  command.option("B.toml", options->other, "Another job, or the same").required();
  command.option("--set-a", options->set_a, "As --set, for A alone; may be repeated")
      .type("KEY.PATH=VALUE")
      .repeats();
  command.option("--set-b", options->set_b, "As --set, for B alone; may be repeated")
      .type("KEY.PATH=VALUE")
      .repeats();
  add_prediction_flags(command, *options);
  command
      .option("-o,--output", options->drawn,
              "Also write JSON (.json) or a picture (.svg, .png, .pdf)")
      .type("FILE");
  command.runs([&context, options] { return run_diff(context, *options); });
}

}  // namespace rehearse::cli
