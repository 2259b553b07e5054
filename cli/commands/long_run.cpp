#include "cli/commands/long_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/console/duration.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/teller.h"
#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/base/names.h"
#include "engine/base/numbers.h"
#include "engine/base/table.h"
#include "study/decision.h"
#include "study/goodput_study.h"
#include "study/load.h"

namespace rehearse::cli {
namespace {

using goodput::Loss;

study::LongRunOptions options_of(const Context& context, const StudyFlags& flags,
                                 const LongRunFlags& how, Teller& teller) {
  study::LongRunOptions out{.source = {.file = flags.job, .text = {}, .set = context.set}};
  out.duration = parse_duration(how.duration);
  if (!flags.report.empty())
    throw InputError("--report: needs no --duration; -o FILE.svg draws a long run");
  StudyFlags step = flags;
  step.output.clear();
  step.seeds = std::min(step.seeds, study::most_step_seeds);
  out.step = study_options(step, teller);
  out.seeds = flags.seeds;
  return out;
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

std::string checkpoint_text(const study::LongRun& run) {
  const goodput::Setting& s = run.setting;
  const std::string kind = fmt::format("{} to the {}: {}", name_of(run.checkpoint.kind),
                                       run.checkpoint.kind == job::CheckpointKind::peer
                                           ? fmt::format("memory of {} nodes", run.checkpoint.group)
                                           : fmt::format("{} disk", name_of(run.checkpoint.place)),
                                       to_text(Bytes(run.bytes)));
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
  if (run.expected) out += fmt::format("; closed form {}", percent(*run.expected, 2));
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
  row("failures",
      fmt::format("{}{}", failures.source,
                  run.between.value > 0 ? fmt::format(": one in {}", to_text(run.between))
                                        : ": none in this time"));
  row("recovery", fmt::format("{}: {}; {} spare node{}", name_of(run.policy),
                              goodput::policy_named(run.policy).summary, run.setting.spares,
                              run.setting.spares == 1 ? "" : "s"));
  row("checkpoint", checkpoint_text(run));
  if (!run.scores.empty()) row("interval", intervals_text(run));
  row("interruptions", fmt::format("{:.4g}", m.interruptions));
  row("steps", fmt::format("{:.6g} done, {:.4g} lost and done again", m.steps, m.lost_steps));

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

struct Row {
  std::string label = {};
  std::optional<study::LongRun> run = {};
  std::string refusal = {};
};

std::vector<std::string> cells(const Row& row) {
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
  for (const double lost : m.lost) out.push_back(percent(lost / run.duration.value, 2));
  return out;
}

std::string describe(const std::vector<Row>& rows, const study::LongRuns& runs, Seconds duration) {
  std::vector<std::vector<std::string>> lines{
      {"recovery, checkpoint", "goodput", "+-", "interval", "failures", "steps lost"}};
  for (const char* loss : spellings(Loss{})) lines[0].emplace_back(loss);
  for (const Row& row : rows) lines.push_back(cells(row));
  const study::Study& step = runs.step();
  std::string out = table(lines) + fmt::format("\n{} on {}; {}, {}\n{} of failures {}; step {}\n",
                                               work_text(step.subject), step.subject.cluster,
                                               step.method, mesh_text(step), days(duration),
                                               runs.failures().source, step_time_text(step));
  std::vector<std::string> said;
  for (const Row& row : rows)
    if (row.run)
      for (const std::string& note : row.run->notes) said.push_back(row.label + ": " + note);
  for (const std::string& note : said) out += "note: " + note + "\n";
  for (const std::string& warning : step.warnings) out += "warning: " + warning + "\n";
  return out;
}

/// The values that a list names; of an empty list the job's own.
template <class E>
std::vector<E> choices(const std::string& flag, const std::string& list, E own) {
  if (list.empty()) return {own};
  std::vector<E> out;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    const auto one = from_name<E>(name);
    if (!one) {
      const std::string near = nearest(name, names_of<E>());
      throw InputError(fmt::format("{} {}: \"{}\" is not one of {}{}", flag, list, name,
                                   fmt::join(names_of<E>(), ", "),
                                   near.empty() ? "" : "; did you mean \"" + near + "\"?"));
    }
    if (std::find(out.begin(), out.end(), *one) == out.end()) out.push_back(*one);
    begin = end + 1;
  }
  return out;
}

void write_and_print(const Context& context, const StudyFlags& flags, const std::string& python,
                     const nlohmann::ordered_json& json, const std::string& text, Teller& teller) {
  write_result_file(flags.output, text_of(json), python);
  teller.done();
  std::cout << (context.json ? text_of(json) : text);
}

}  // namespace

CLI::Option* add_duration(CLI::App& command, std::string& duration) {
  return command
      .add_option("--duration", duration,
                  "Run so long, as in 54d, with the failures of [faults]: goodput and lost time")
      ->type_name("TIME");
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
  const auto policies = choices("--recovery", how.recovery, job.recovery.policy);
  const auto kinds = choices("--checkpoint", how.checkpoint, job.checkpoint.kind);
  study::LongRuns runs(job, options);
  std::vector<Row> rows;
  for (const job::RecoveryPolicy policy : policies)
    for (const job::CheckpointKind kind : kinds) {
      job::Recovery recovery = job.recovery;
      recovery.policy = policy;
      job::Checkpoint checkpoint = job.checkpoint;
      checkpoint.kind = kind;
      Row& row = rows.emplace_back();
      row.label = fmt::format("{}, {}", name_of(policy), name_of(kind));
      teller.say(row.label);
      try {
        row.run = runs.run(recovery, checkpoint);
      } catch (const InputError& error) {
        row.refusal = error.what();
      }
    }
  if (std::none_of(rows.begin(), rows.end(), [](const Row& r) { return r.run.has_value(); }))
    throw InputError(rows.front().refusal);
  using Json = nlohmann::ordered_json;
  Json all = Json::array(), refused = Json::array();
  for (const Row& row : rows) {
    if (!row.run) {
      refused.push_back({{"label", row.label}, {"reason", row.refusal}});
      continue;
    }
    Json one = to_json(*row.run, runs.step(), runs.failures());
    one["label"] = row.label;
    all.push_back(std::move(one));
  }
  const Json json = with_header(
      context,
      {{"schema_version", 1}, {"long_runs", std::move(all)}, {"cannot_run", std::move(refused)}});
  write_and_print(context, flags, python, json, describe(rows, runs, options.duration), teller);
  return good;
}

}  // namespace rehearse::cli
