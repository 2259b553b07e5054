// `rehearse program`: prints the program that a job compiles to, or what the linker finds in it.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/json_out.h"
#include "cli/console/teller.h"
#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/fnv.h"
#include "engine/link/link.h"
#include "engine/link/workspace.h"
#include "study/load.h"
#include "study/parts/program_check.h"
#include "study/planning/decision.h"

namespace rehearse::cli {
namespace {

struct ProgramOptions {
  std::string job = {}, from = {}, output = {};
  bool check = false;
};

/// Calls `f`. If the program comes from a file (--from), a ProgramError of `f` gets the file's
/// name.
template <class F>
auto of_file(const ProgramOptions& options, F f) {
  try {
    return f();
  } catch (const ProgramError& e) {
    if (options.from.empty()) throw;
    throw ProgramError(fmt::format("{}: {}", options.from, e.what()));
  }
}

program::Program read_program(const ProgramOptions& options, const std::optional<job::Job>& job) {
  if (options.from.empty()) return program_of(*job);
  return of_file(options, [&] { return program::parse_program(read_file(options.from)); });
}

/// Throws InputError when a program from a file cannot be one of the job. Returns where it differs
/// from the program that the job compiles to.
study::ProgramDifference check_against(const ProgramOptions& options,
                                       const program::Program& program, const job::Job& job) {
  const auto refuse = [&](const std::string& why) {
    throw InputError(fmt::format("--from {}: {}", options.from, why));
  };
  const model::ModelSpec& model = job.model;
  if (const int ranks = job.plan.mesh.world_size(); program.world_size != ranks)
    refuse(
        fmt::format("it is for {} ranks, but {} has {}", program.world_size, options.job, ranks));
  for (const program::Role& role : program.roles)
    for (const program::Op& op : role.ops)
      if (const auto* compute = std::get_if<program::Compute>(&op.work);
          compute != nullptr && compute->segment >= model.segments.size())
        refuse(fmt::format("it computes segment {}, but model {} of {} has {}", compute->segment,
                           model.name, options.job, model.segments.size()));
  const program::Program own = program_of(job);
  if (const std::string why = study::of_another_job(program, own); !why.empty())
    refuse(fmt::format("it is of another job than {} (model {}): {}; leave one of the two out",
                       options.job, model.name, why));
  return study::difference_of(program, own);
}

int run_program(const Context& context, const ProgramOptions& options) {
  if (options.job.empty() && options.from.empty())
    throw InputError("program: give JOB.toml or --from FILE");
  if (options.job.empty() && !context.set.empty())
    throw InputError(fmt::format(
        "--set {}: a program's text has no keys; give the JOB.toml that has", context.set.front()));
  if (!options.output.empty()) check_writable("-o", options.output);
  Teller teller(context);
  std::optional<job::Job> job;
  if (!options.job.empty()) {
    job = study::load(options.job, context.set);
    study::decide_plan(*job, &teller);
  }
  teller.say(options.check ? "linking and checking the program" : "compiling the program");
  program::Program program = read_program(options, job);
  std::optional<study::ProgramDifference> difference;
  if (job && !options.from.empty()) difference = check_against(options, program, *job);
  if (!options.output.empty()) write_file(options.output, to_text(program));
  if (options.check) {
    const link::LinkedProgram linked = of_file(options, [&] {
      return job ? link::link(std::move(program), job->model) : link::link(std::move(program));
    });
    teller.done();
    if (context.json) {
      nlohmann::ordered_json out = study::to_json(linked, job.has_value());
      if (difference) out["difference_from_job"] = to_json(*difference);
      std::cout << text_of(with_header(context, out));
    } else {
      std::cout << study::describe(linked, job.has_value())
                << (difference ? describe(*difference, options.job) : "");
    }
  } else if (context.json) {
    teller.done();
    const nlohmann::ordered_json out{{"schema_version", 1},
                                     {"program_hash", hash_text(hash_of(program))},
                                     {"text", to_text(program)}};
    std::cout << text_of(with_header(context, out));
  } else if (options.output.empty()) {
    teller.done();
    std::cout << to_text(program);
  }
  return good;
}

}  // namespace

void add_program(CLI::App& app, Context& context) {
  const Command command(app, context, "program",
                        "Print the program that a job compiles to, or check it",
                        "  rehearse program experiments/paper-ddp.toml\n"
                        "  rehearse program experiments/paper-ddp.toml --check\n"
                        "  rehearse program experiments/paper-ddp.toml -o ddp.program\n"
                        "  rehearse program --from ddp.program --check");
  auto options = std::make_shared<ProgramOptions>();
  command.job(options->job);
  command.option("--from", options->from, "Read a program's text instead of compiling the job's")
      .type("FILE");
  command.option("-o,--output", options->output, "Write the text to a file").type("FILE");
  command.flag("--check", options->check,
               "Link it: deadlocks, races, layouts; print roles, channels and memory");
  command.runs([&context, options] { return run_program(context, *options); });
}

}  // namespace rehearse::cli
