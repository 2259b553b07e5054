// `rehearse sweep`: predicts many variants of one job. Results are kept as they come, so that a
// sweep that was stopped goes on; at the end come a table of the best, a CSV and a picture.
#include "study/sweep/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/batch/batch_system.h"
#include "cli/commands/sweep/sweep_on.h"
#include "cli/commands/sweep/sweep_text.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/teller.h"
#include "engine/base/duration.h"
#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "study/sweep/search.h"

namespace rehearse::cli {
namespace {

using Json = nlohmann::ordered_json;

struct SweepOptions {
  std::string file = {}, output = {}, shard = {}, on = {}, wait = {};
  std::vector<std::string> by = {}, on_arguments = {};
  int jobs = 0, top = 10, shards = 0, search = 0;
  bool dry_run = false;
};

void read_shard(const std::string& text, study::Work& work) {
  if (text.empty()) return;
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, work.shard);
  bool good = error == std::errc() && slash != end && *slash == '/';
  if (good) {
    const auto [rest, wrong] = std::from_chars(slash + 1, end, work.of);
    good = wrong == std::errc() && rest == end;
  }
  if (!good || work.shard < 1 || work.shard > work.of)
    throw InputError(fmt::format("--shard {}: must be I/N with I from 1 to N, as in 1/4", text));
}

/// The options of --on; nothing without it.
std::optional<SweepOn> read_on(const SweepOptions& options) {
  if (options.on.empty()) {
    const bool alone = options.shards == 0 && options.on_arguments.empty() && options.wait.empty();
    if (!alone) throw InputError("--shards, --on-args and --wait belong to --on");
    return std::nullopt;
  }
  if (!options.shard.empty()) throw InputError("--shard and --on exclude each other");
  SweepOn out{.system = options.on,
              .file = options.file,
              .folder = options.output,
              .shards = options.shards,
              .jobs = options.jobs};
  for (const std::string& text : options.on_arguments)
    for (std::string& word : words_of(text, "--on-args")) out.arguments.push_back(std::move(word));
  if (!options.wait.empty()) out.wait = duration_of("--wait", options.wait, limits::patience);
  return out;
}

/// Runs search/suggest.py.
auto optimiser() {
  return [python = need_python("--search")](const std::string& state) {
    const TemporaryFolder folder;
    write_file(folder.file("state.json"), state);
    return run_script(python, "search/suggest.py", {folder.file("state.json")});
  };
}

int run_sweep(const Context& context, const SweepOptions& options) {
  study::Work work{.jobs = options.jobs, .folder = options.output};
  read_shard(options.shard, work);
  const std::optional<SweepOn> on = read_on(options);
  if (options.output.empty() && !options.dry_run)
    throw InputError("sweep needs -o DIR, a folder for its results; --dry-run lists the points");
  const study::Sweep sweep = study::read_sweep(options.file, context.set);
  const bool ranked = !sweep.scaling || !options.by.empty();
  if (!ranked && options.top != SweepOptions{}.top)
    throw InputError(
        fmt::format("--top {}: the table of a [scaling] has all points, in the order of their "
                    "devices; with --by METRIC it has the best",
                    options.top));
  const std::vector<study::Metric> by = study::metrics_named(sweep.question, options.by, "--by");
  const std::vector<study::Point> points = study::points_of(sweep);
  study::Rows rows = options.output.empty() ? study::Rows{} : study::read_rows(options.output);
  if (options.dry_run) {
    const Whole known{sweep, study::results_of(sweep, points, rows), by, 0, ranked};
    std::cout << (context.json ? text_of(json_of(context, known)) : listed(known));
    return good;
  }
  const bool searches = options.search > 0;
  study::Search search{.by = by, .budget = options.search};
  if (searches) search.choose = optimiser();
  Teller teller(context);
  work.progress = &teller;
  int status = good;
  std::vector<study::Row> found;
  if (on)
    status = compute_on(context, *on, points, teller, rows);
  else if (searches)
    found = study::search(sweep, points, search, work, rows);
  else
    study::compute(sweep, points, work, rows);
  teller.done();
  if (status > 128) return status;
  const Whole whole{sweep, searches ? std::move(found) : study::results_of(sweep, points, rows), by,
                    searches ? points.size() : 0, ranked};
  const Json json = json_of(context, whole);
  // As compare, of which no method can run. A shard is good when it has tried its points.
  const auto has_result = [](const study::Row& row) { return !row.metrics.empty(); };
  if (status == good && work.of == 1 && !whole.results.empty() &&
      std::ranges::none_of(whole.results, has_result))
    status = refused;
  if (work.of == 1)
    write_file(options.output + "/results.csv", study::csv_of(sweep, whole.results));
  if (context.json)
    std::cout << text_of(json);
  else
    std::cout << best_table(whole, options.top) << remarks(whole);
  std::cout.flush();  // the answer, whatever becomes of its picture
  if (work.of == 1) {
    std::string wrote = "results.jsonl, results.csv";
    if (const std::string python = find_python(); !python.empty()) {
      const TemporaryFolder folder;
      write_file(folder.file("sweep.json"), text_of(json));
      run_report(python,
                 {folder.file("sweep.json"), "-o", options.output + "/sweep.svg", "--quiet"});
      wrote += ", sweep.svg";
    } else {
      wrote += "; no picture: that needs Python with matplotlib (rehearse doctor)";
    }
    if (!context.json) std::cout << fmt::format("{}: {}\n", options.output, wrote);
  }
  return status;
}

}  // namespace

void add_sweep(CLI::App& app, Context& context) {
  const Command command(
      app, context, "sweep", "Predict many variants of a job and find the best",
      "  rehearse sweep experiments/sweep/methods.toml -o out/sweep\n"
      "  rehearse sweep experiments/sweep/methods.toml --dry-run\n"
      "  rehearse sweep experiments/sweep/methods.toml -o out/sweep --by tokens_per_s --top 5\n"
      "  rehearse sweep experiments/sweep/methods.toml -o out/sweep --shard 1/4\n"
      "  rehearse sweep experiments/sweep/methods.toml -o out/sweep --on slurm --on-args "
      "\"--time 1:00:00\"");
  auto options = std::make_shared<SweepOptions>();
  command.option("SWEEP.toml", options->file, "What to vary (docs/sweep.md)").required();
  command
      .option("-o,--output", options->output,
              "Folder of results; a sweep that was stopped goes on with those in it")
      .type("DIR");
  command
      .option("--by", options->by,
              "The figure by which points are ranked, as in tokens_per_s; of several, as in "
              "step_s,cost_per_step, the frontier is printed (docs/sweep.md)")
      .comma_separated()
      .type("METRIC,...");
  command.option("--top", options->top, "How many of the best points to print")
      .between(1, 1000000)
      .shows_default();
  command
      .option("--jobs", options->jobs,
              "Points computed at a time; 0: as many as cores; with --on: of a task; 0: one")
      .between(0, 4096)
      .shows_default();
  command.option("--shard", options->shard, "Only the points dealt to machine I of N").type("I/N");
  command
      .option("--on", options->on,
              "Compute on other machines: as tasks of HyperQueue (hq) or Slurm (slurm)")
      .one_of(batch_systems());
  command
      .option("--search", options->search,
              "Compute at most so many points, which an optimiser chooses to be good by --by")
      .between(1, 1000000)
      .excludes("--shard")
      .excludes("--on")
      .type("N");
  command.option("--shards", options->shards, "With --on: how many tasks; 0: chosen")
      .between(0, 100000)
      .shows_default();
  command
      .option("--on-args", options->on_arguments,
              "With --on: arguments for hq submit or sbatch; may be repeated")
      .type("TEXT")
      .repeats();
  command
      .option("--wait", options->wait,
              "With --on: the longest wait, as in 12h; default: until Ctrl-C")
      .type("TIME");
  command.flag("--dry-run", options->dry_run, "List the points and compute none");
  command.runs([&context, options] { return run_sweep(context, *options); });
}

}  // namespace rehearse::cli
