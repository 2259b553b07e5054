#include "cli/commands/long_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/teller.h"
#include "engine/base/duration.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"
#include "engine/base/numbers/numbers.h"
#include "engine/base/table.h"
#include "study/load.h"
#include "study/long_runs/goodput_rows.h"
#include "study/planning/decision.h"

namespace rehearse::cli {
namespace {

using goodput::Loss;

study::LongRunOptions options_of(const Context& context, const StudyFlags& flags,
                                 const LongRunFlags& how, Teller& teller) {
  const Seconds duration = parse_duration(how.duration);
  if (!flags.report.empty())
    throw InputError("--report: needs no --duration; -o FILE.svg draws a long run");
  StudyFlags step = flags;
  step.output.clear();
  return study::long_run_options({.file = flags.job, .text = {}, .set = context.set}, duration,
                                 study_options(step, teller));
}

job::Job load_decided(const Context& context, const StudyFlags& flags, Teller& teller) {
  job::Job job = study::load(flags.job, context.set);
  study::decide_plan(job, &teller);
  return job;
}

std::string plus_minus(const execution::Spread& g) {
  std::string out = percent(g.mean, 2);
  if (g.values.size() > 1)
    out += fmt::format(" +- {} (95%, {} seeds)", fixed(100 * g.ci95, 2), g.values.size());
  return out;
}

std::string place_text(const job::Checkpoint& checkpoint) {
  if (checkpoint.kind == job::CheckpointKind::peer)
    return fmt::format("memory of {} nodes", checkpoint.group);
  if (checkpoint.place == job::CheckpointPlace::memory) return "memory of the hosts";
  return fmt::format("{} disk", name_of(checkpoint.place));
}

std::string checkpoint_text(const study::LongRun& run) {
  const goodput::Setting& s = run.setting;
  const std::string kind = fmt::format("{} to the {}: {}", name_of(run.checkpoint.kind),
                                       place_text(run.checkpoint), to_text(Bytes(run.bytes)));
  if (s.save_every == 0) return kind + ", never written: nothing fails, and train.save_every is 0";
  return fmt::format(
      "{}, every {} step{} ({}{}); steps wait {}{}", kind, s.save_every,
      s.save_every == 1 ? "" : "s", to_text(static_cast<double>(s.save_every) * run.step),
      run.searched ? ", the best interval" : "", to_text(goodput::seconds(s.checkpoint.stall)),
      s.checkpoint.persist > 0
          ? fmt::format(", safe {} later", to_text(goodput::seconds(s.checkpoint.persist)))
          : "");
}

std::string intervals_text(const study::LongRun& run) {
  const goodput::IntervalScore& best = goodput::best(run.scores);
  std::string out = fmt::format("best {}, Young {}, Daly {}",
                                to_text(static_cast<double>(best.save_every) * run.step),
                                to_text(run.young), to_text(run.daly));
  if (run.closed_form_goodput)
    out += fmt::format("; closed form {}", percent(*run.closed_form_goodput, 2));
  if (run.at_risk > 1)
    out += fmt::format("; {} of the failures destroy the checkpoints that nodes hold",
                       percent(run.summary.destroyed / run.summary.interruptions, 0));
  return out;
}

/// Of a model: what was drawn, and what the model says of a longer time.
std::string failures_text(const study::LongRun& run, const study::JobFailures& failures) {
  std::string out = failures.source;
  out += run.between.value > 0 ? fmt::format(": one in {}", to_text(run.between))
                               : ": none in this time";
  if (failures.per_day > 0)
    out += fmt::format(" ({} by the model)", to_text(Seconds(86400 / failures.per_day)));
  return out;
}

std::string describe(const study::LongRun& run, const study::Study& step,
                     const study::JobFailures& failures) {
  const goodput::Summary& m = run.summary;
  std::string out = fmt::format("goodput = {} over {}{}\n\n", plus_minus(m.goodput),
                                days(run.duration), step.calibrated ? "" : "  uncalibrated");
  const auto row = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<14}{}\n", name, value);
  };
  row("model", work_text(step.subject));
  row("cluster",
      fmt::format("{}, {} node{}", step.subject.cluster, run.nodes, run.nodes == 1 ? "" : "s"));
  row("method", fmt::format("{}, {} = {} ranks", step.method, mesh_text(step), step.world_size));
  row("step time", step_time_text(step));
  row("failures", failures_text(run, failures));
  row("recovery", fmt::format("{}: {}; {} spare node{}", name_of(run.policy),
                              goodput::policy_named(run.policy).summary, run.setting.spares,
                              run.setting.spares == 1 ? "" : "s"));
  row("checkpoint", checkpoint_text(run));
  if (!run.scores.empty()) row("interval", intervals_text(run));
  row("interruptions", fmt::format("{:.4g}", m.interruptions));
  row("steps", fmt::format("{:.6g} done, {:.4g} lost and done again", m.steps, m.lost_steps));

  if (const std::optional<study::RunCost> cost = cost_of(run, step))
    row("cost",
        fmt::format("{} in all{}, {} a billion tokens; {}",
                    study::money_text(cost->whole, cost->currency),
                    cost->spares > 0 ? fmt::format(", of which {} for spare nodes",
                                                   study::money_text(cost->spares, cost->currency))
                                     : "",
                    study::money_text(cost->per_billion_tokens, cost->currency),
                    fmt::join(step.rent.prices, ", ")));

  std::vector<std::vector<std::string>> lines{{"time", "share", "of the run", "per interruption"}};
  const auto line = [&](const std::string& name, double seconds) {
    lines.push_back({name, percent(seconds / run.duration.value, 2), to_text(Seconds(seconds)),
                     m.interruptions > 0 ? to_text(Seconds(seconds / m.interruptions)) : ""});
  };
  line("productive", m.productive);
  for (std::size_t l = 0; l < goodput::losses; ++l)
    if (m.lost[l] > 0) line(spellings(Loss{})[l], m.lost[l]);
  out += "\n" + table(lines);
  for (const std::string& note : run.notes) out += "note: " + note + "\n";
  for (const std::string& warning : step.warnings) out += "warning: " + warning + "\n";
  return out;
}

/// `priced`: with a cell for the cost.
std::vector<std::string> cells(const study::LongRunRow& row, const study::Study& step,
                               bool priced) {
  if (!row.run) return {row.label, "cannot run: " + row.refusal};
  const study::LongRun& run = *row.run;
  const goodput::Summary& m = run.summary;
  std::vector<std::string> out{row.label,
                               percent(m.goodput.mean, 2),
                               fixed(100 * m.goodput.ci95, 2),
                               run.setting.save_every > 0
                                   ? to_text(static_cast<double>(run.setting.save_every) * run.step)
                                   : "-",
                               fmt::format("{:.4g}", m.interruptions),
                               fmt::format("{:.4g}", m.lost_steps)};
  if (priced) {
    const std::optional<study::RunCost> cost = cost_of(run, step);
    out.push_back(cost ? study::money_text(cost->whole, cost->currency) : "-");
  }
  for (const double lost : m.lost) out.push_back(percent(lost / run.duration.value, 2));
  return out;
}

std::string describe(const std::vector<study::LongRunRow>& rows, const study::LongRuns& runs,
                     Seconds duration) {
  std::vector<std::vector<std::string>> lines{
      {"recovery, checkpoint", "goodput", "+-", "interval", "failures", "steps lost"}};
  const study::Study& step = runs.step();
  const bool priced = std::ranges::any_of(
      rows, [&](const study::LongRunRow& row) { return row.run && cost_of(*row.run, step); });
  if (priced) lines[0].emplace_back("cost");
  for (const char* loss : spellings(Loss{})) lines[0].emplace_back(loss);
  for (const study::LongRunRow& row : rows) lines.push_back(cells(row, step, priced));
  std::string out = table(lines) + fmt::format("\n{} on {}; {}, {}\n{} of failures {}; step {}\n",
                                               work_text(step.subject), step.subject.cluster,
                                               step.method, mesh_text(step), days(duration),
                                               runs.failures().source, step_time_text(step));
  std::vector<std::string> said;
  for (const study::LongRunRow& row : rows)
    if (row.run)
      for (const std::string& note : row.run->notes) said.push_back(row.label + ": " + note);
  for (const std::string& note : said) out += "note: " + note + "\n";
  for (const std::string& warning : step.warnings) out += "warning: " + warning + "\n";
  return out;
}

void write_and_print(const Context& context, const StudyFlags& flags, const std::string& python,
                     const nlohmann::ordered_json& json, const std::string& text, Teller& teller) {
  write_result_file(flags.output, text_of(json), python);
  teller.done();
  std::cout << (context.json ? text_of(json) : text);
}

}  // namespace

Option add_duration(const Command& command, std::string& duration) {
  return command
      .option("--duration", duration,
              "Run so long, as in 54d, with the failures of [faults]: goodput and lost time")
      .type("TIME");
}

Seconds parse_duration(const std::string& text) {
  return duration_of("--duration", text, limits::long_run);
}

int run_long(const Context& context, const StudyFlags& flags, const LongRunFlags& how) {
  Teller teller(context);
  const study::LongRunOptions options = options_of(context, flags, how, teller);
  const std::string python = check_result_file(flags.output);
  const job::Job job = load_decided(context, flags, teller);
  study::LongRuns runs(job, options);
  teller.say("walking " + how.duration);
  const study::LongRun run = runs.run(job.recovery, job.checkpoint);
  const nlohmann::ordered_json json =
      with_header(context, to_json(run, runs.step(), runs.failures()));
  write_and_print(context, flags, python, json, describe(run, runs.step(), runs.failures()),
                  teller);
  return good;
}

int compare_long(const Context& context, const StudyFlags& flags, const LongRunFlags& how) {
  Teller teller(context);
  const study::LongRunOptions options = options_of(context, flags, how, teller);
  const std::string python = check_result_file(flags.output);
  const job::Job job = load_decided(context, flags, teller);
  study::LongRuns runs(job, options);
  const std::vector<study::LongRunRow> rows = study::compare_long_runs(
      runs, job, {.recovery = how.recovery, .checkpoint = how.checkpoint, .option = "--"}, &teller);
  const nlohmann::ordered_json json = with_header(context, to_json(rows, runs));
  write_and_print(context, flags, python, json, describe(rows, runs, options.duration), teller);
  return good;
}

}  // namespace rehearse::cli
