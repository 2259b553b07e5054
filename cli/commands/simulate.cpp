// `rehearse simulate`: predicts the step time of a job, with throughput, MFU, bubble, exposed
// communication, memory and energy. With a plan file it also writes the plan's rehearsal.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands/long_run.h"
#include "cli/commands/plan/plan_picture.h"
#include "cli/commands/study_options.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/teller.h"
#include "engine/base/files/files.h"
#include "engine/base/names.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "engine/planner/adaptive.h"
#include "study/load.h"
#include "study/long_runs/fault_study.h"
#include "study/planning/decision.h"
#include "study/planning/rehearsal.h"
#include "study/prediction/explain.h"
#include "study/prediction/study.h"
#include "study/prediction/study_migration.h"

namespace rehearse::cli {
namespace {

struct SimulateOptions : StudyFlags {
  std::string trace = {}, faults = {};
  int steps = execution::Steps().measured();
  bool explain = false;
  LongRunFlags long_run = {};
};

std::string bytes(double n) { return to_text(Bytes(n)); }

std::string describe(const study::Study& s) {
  const execution::Summary& m = s.summary;
  const std::string doubt = s.calibrated ? "" : "  uncalibrated";
  std::string out = fmt::format("step time = {}{}\n\n", step_time_text(s), doubt);
  const auto row = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<23}{}\n", name, value);
  };
  if (s.interval) row("interval", interval_text(s));
  row("model", work_text(s.subject));
  row("cluster", s.subject.cluster);
  row("method", s.method + (s.stated_zero > 0 ? fmt::format(", ZeRO-{}", s.stated_zero) : ""));
  row("mesh", fmt::format("{} = {} ranks", mesh_text(s), s.world_size));
  if (!s.shares.empty()) {
    const auto [least, most] = std::ranges::minmax(s.shares);
    row("samples", fmt::format("{} to {} a replica in each micro-batch", least, most));
  }
  row("throughput",
      fmt::format("{:.5g} samples/s, {:.5g} tokens/s", m.samples_per_s, m.tokens_per_s));
  if (s.deadline)
    row("in time",
        fmt::format("{} of the samples, in rounds of at most {}; late clients are dropped",
                    percent(m.in_time, 1), to_text(*s.deadline)));
  row("MFU", m.mfu > 0 ? percent(m.mfu, 2) +
                             (s.subject.precision == "fp8" ? " of the FP8 peak" : "") + doubt
                       : "not known: the peak rate of this machine's cores is not");
  row("bubble", percent(m.bubble_fraction, 2) + " of the compute lanes' time");
  row("exposed communication", to_text(Seconds(m.exposed_comm_s)) + " a step");
  if (s.last_phase > 1)
    row("phase", fmt::format("from step {} on; earlier ones do other work, which is not predicted",
                             s.last_phase));
  if (s.fusion)
    row("fusion", fmt::format("buffers of {}, a cycle of {}, {} of which bring gradients in a step",
                              to_text(Bytes(s.fusion->buffer_bytes)),
                              to_text(Seconds(s.fusion->cycle_s)), s.fusion->cycles));
  row("sent per rank",
      fmt::format("{} a step, at most {}", bytes(m.bytes_sent_mean), bytes(m.bytes_sent_max)));
  row("sent in all", bytes(m.bytes_per_step) + " a step");
  if (!s.collectives.empty()) row("collectives", describe(s.collectives));
  if (s.saving) row("checkpoints", describe(*s.saving));
  for (const planner::DeviceNeed& need : s.memory) {
    row("peak memory", fmt::format("{} of {} on {}", bytes(static_cast<double>(need.need)),
                                   planner::capacity_text(need.capacity, need.reserve), need.kind));
    row("", planner::parts_text(need.parts));
  }
  if (const planner::HostNeed* const host = fullest_host(s))
    row("host memory",
        fmt::format("{}{} on node {}", bytes(static_cast<double>(host->need)),
                    host->capacity > 0
                        ? fmt::format(" of {}", bytes(static_cast<double>(host->capacity)))
                        : "",
                    host->node));
  if (const std::string energy = energy_text(s); !energy.empty())
    row("energy", s.idle_unknown.empty()
                      ? energy
                      : fmt::format("{}; idle power of {} counts as 0, not known", energy,
                                    fmt::join(s.idle_unknown, ", ")));
  if (const std::string cost = cost_text(s); !cost.empty()) row("cost", cost);
  row("robustness", fixed(m.robustness, 4));
  row("fidelity", std::string(name_of(s.fidelity)));
  row("steps", steps_text(s.steps));
  for (const std::string& warning : s.warnings) out += "warning: " + warning + "\n";
  if (s.faults) out += describe(*s.faults);
  return out;
}

std::string describe_timings(const study::Study& s) {
  return fmt::format("wall clock: compile {}, link {}, costs {}, run {}\n",
                     to_text(Seconds(s.compile_s)), to_text(Seconds(s.link_s)),
                     to_text(Seconds(s.costs_s)), to_text(Seconds(s.run_s)));
}

/// `against`: the rehearsal whose baselines are shown beside the plan; none: the job has no plan to
/// show.
void write_report(const SimulateOptions& options, const job::Job& job,
                  const nlohmann::ordered_json& json, const std::string& python,
                  const TemporaryFolder& folder, const std::string& trace,
                  const std::optional<study::Rehearsal>& against) {
  write_file(folder.file("simulate.json"), text_of(json));
  std::vector<std::string> arguments{folder.file("simulate.json")};
  const auto pictures = against ? plan_pictures(job, *against, folder, trace)
                                : std::vector<std::string>{"simulated=" + trace};
  arguments.insert(arguments.end(), pictures.begin(), pictures.end());
  arguments.insert(arguments.end(), {"-o", options.report, "--quiet"});
  run_report(python, arguments);
}

int run_simulate(const Context& context, const SimulateOptions& options) {
  Teller teller(context);
  study::StudyOptions how = study_options(options, teller);
  how.trace = options.trace;
  if (!how.trace.empty()) check_writable("--trace", how.trace);
  const std::string python = options.report.empty() ? "" : need_python("--report");
  job::Job job = study::load(options.job, context.set);
  const std::optional<plan::Decision> decided = study::decide_plan(job, &teller);
  how.steps.steady = options.steps - how.steps.warm_up;
  if (!job.faults.trace.empty())
    how.faults = std::make_shared<const faults::Trace>(study::given_trace(job));
  std::unique_ptr<TemporaryFolder> folder;
  if (!options.report.empty()) {
    folder = std::make_unique<TemporaryFolder>();
    if (how.trace.empty()) how.trace = folder->file("trace.json");
  }
  std::optional<study::Rehearsal> rehearsal;
  if (!job.plan_file.empty()) {
    check_writable("method.plan", study::rehearsal_path(job.plan_file));
    rehearsal = study::begin_rehearsal(job);
    // A plan that does not fit is refused below. The file is written before that, so that `train
    // --rehearsed` can say why it refuses the plan.
    if (!rehearsal->over_memory.empty()) write_rehearsal(*rehearsal, job);
  }
  std::optional<execution::Explanation> explanation;
  if (options.explain) {
    teller.say("explaining the step");
    explanation = study::explain(job);
    how.critical = explanation->critical;
  }
  study::Study result = study::predict(job, how);
  // The baselines of a rehearsal have other programs, and nothing breaks in them.
  how.critical.clear();
  how.faults.reset();
  if (decided) add_warnings(*decided, result);
  if (rehearsal) {
    finish_rehearsal(*rehearsal, job, result, how, options.job, context.set,
                     folder ? baseline_traces(*folder) : "");
    write_rehearsal(*rehearsal, job);
  } else if (decided && folder) {
    finish_rehearsal(rehearsal.emplace(), job, result, how, options.job, context.set,
                     baseline_traces(*folder));
  }
  nlohmann::ordered_json json = with_header(context, to_json(result));
  if (explanation)
    json["explain"] = study::explanation_json(*explanation, result.summary.step_time.mean);
  std::optional<study::MigrationStudy> migration;
  if (const auto first = planner::warm_up_plan(job, decided ? &*decided : nullptr)) {
    migration =
        study::study_migration(job, *first, how.fidelity,
                               options.trace.empty() ? "" : study::migration_trace(options.trace));
    json["migration"] = to_json(*migration);
  }
  if (folder) teller.say("writing the report");
  if (folder) write_report(options, job, json, python, *folder, how.trace, rehearsal);
  if (!options.output.empty()) write_file(options.output, text_of(json));
  teller.done();
  if (context.json) {
    if (options.timings) json["timings"] = timings_json(result);
    std::cout << text_of(json);
  } else {
    std::cout << describe(result);
    if (decided) std::cout << fmt::format("{:<23}{}\n", "plan", planner::summary_of(job.plan));
    if (rehearsal) std::cout << describe(*rehearsal);
    if (!job.plan_file.empty())
      std::cout << fmt::format("{:<23}{}\n", "rehearsed in", study::rehearsal_path(job.plan_file));
    if (migration) std::cout << fmt::format("{:<23}{}\n", "migration", describe(*migration));
    if (explanation)
      std::cout << "\n" << study::explanation_text(*explanation, result.summary.step_time.mean);
    if (options.timings) std::cout << describe_timings(result);
  }
  return good;
}

}  // namespace

void add_simulate(CLI::App& app, Context& context) {
  const Command command(
      app, context, "simulate", "Predict the step time of a job on its cluster",
      "  rehearse simulate experiments/paper-ddp.toml\n"
      "  rehearse simulate experiments/paper-ddp.toml --set method.name=zero3 --json\n"
      "  rehearse simulate experiments/paper-megatron.toml --trace step.json --report out.html\n"
      "  rehearse simulate experiments/goodput/llama3.toml --duration 54d --seeds 20");
  auto options = std::make_shared<SimulateOptions>();
  add_study_flags(command, *options);
  command.flag("--explain", options->explain,
               "Also say where a step goes, and what 10% more of each resource saves");
  command.option("--trace", options->trace, "Write a Chrome/Perfetto trace of two steps")
      .type("FILE");
  command
      .option("--faults", options->faults, "Replay this fault trace (as faults.trace of the job)")
      .type("FILE");
  const Option steps =
      command.option("--steps", options->steps, "The most steps of a run, with 5 that warm up")
          .between(6, 100'000)
          .shows_default();
  const Option duration = add_duration(command, options->long_run.duration);
  for (const char* other : {"--trace", "--explain", "--report", "--timings"})
    duration.excludes(other);
  steps.excludes(duration);
  command.runs([&context, options] {
    if (!options->faults.empty())
      context.set.push_back(fmt::format("faults.trace=\"{}\"", options->faults));
    return options->long_run.duration.empty() ? run_simulate(context, *options)
                                              : run_long(context, *options, options->long_run);
  });
}

}  // namespace rehearse::cli
