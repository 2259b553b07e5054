// `rehearse chaos`: a campaign of real runs in which something goes wrong. Its work is in
// cli/chaos/.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/chaos/campaign.h"
#include "cli/chaos/interruption.h"
#include "cli/commands/training.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/json_out.h"
#include "engine/base/errors.h"

namespace rehearse::cli {
namespace {

struct ChaosOptions : CampaignOptions {
  std::string kind_list = "all";
};

/// The absolute path of the folder that the user gave for the runs.
std::string given_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    throw InputError(fmt::format("--folder {}: cannot be made: {}", path, error.message()));
  return std::filesystem::absolute(path).string();
}

int run_chaos(const Context& context, const ChaosOptions& given) {
  training();  // says how to get LibTorch where it is missing
  CampaignOptions options = given;
  options.kinds = parse_mishaps(given.kind_list);
  options.set = context.set;
  std::optional<TemporaryFolder> own;
  options.folder = given.folder.empty() ? own.emplace().path() : given_folder(given.folder);
  const Interruption interruption;
  Teller teller(context);
  const CampaignResult result = run_campaign(context, options, teller);
  teller.done();
  const bool wrong = result.count(Verdict::wrong) > 0;
  if (wrong && options.keep && own) own->keep();
  if (context.json)
    std::cout << text_of(with_header(context, to_json(result, options)));
  else
    std::cout << describe(result);
  if (Interruption::signal() != 0) {
    fmt::print(stderr, "rehearse: interrupted\n");
    return 128 + Interruption::signal();
  }
  return wrong ? failed : good;
}

}  // namespace

void add_chaos(CLI::App& app, Context& context) {
  const Command command(
      app, context, "chaos", "Break real runs on purpose and judge how they end",
      "  rehearse chaos job.toml --trials 20 --nproc 2\n"
      "  rehearse chaos job.toml --kinds kill,hang,wrong-numbers --methods ddp,zero3\n"
      "  rehearse chaos job.toml --trials 1 --kinds kill --methods ddp --seed 7 --keep");
  auto options = std::make_shared<ChaosOptions>();
  command.job(options->job).required();
  command
      .option("--trials", options->trials,
              "How many runs are broken; default: each kind once with each method")
      .between(1, 1 << 20);
  command.option("--nproc", options->nproc, "Ranks of each run; default: the job's")
      .between(1, 4096);
  command
      .option("--kinds", options->kind_list,
              "What goes wrong, as in kill,hang (docs/faults.md); all: everything")
      .type("LIST")
      .shows_default();
  command
      .option("--methods", options->methods,
              "Methods, as of `rehearse compare`; default: the job's")
      .type("LIST");
  command.option("--seed", options->seed, "Of the first trial; the others have those after it")
      .shows_default();
  command.option("--folder", options->folder, "Where the runs write; default: a temporary folder")
      .type("DIR");
  command.flag("--keep", options->keep, "Keep the runs that went wrong");
  command.runs([&context, options] { return run_chaos(context, *options); });
}

}  // namespace rehearse::cli
