// `rehearse program`: the program that a job compiles to, as text, and what the linker finds in it.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/files.h"
#include "cli/load.h"
#include "cli/program_check.h"
#include "engine/errors.h"
#include "engine/link.h"

namespace rehearse {
namespace {

struct Options {
  std::string job = {}, from = {}, output = {};
  bool check = false;
};

Program read_program(const Context& context, const Options& options) {
  if (options.from.empty()) {
    const Job job = load(context, options.job);
    return compile(job);
  }
  try {
    return parse_program(read_file(options.from));
  } catch (const ProgramError& e) {
    throw ProgramError(fmt::format("{}: {}", options.from, e.what()));
  }
}

int run_program(const Context& context, const Options& options) {
  if (options.job.empty() == options.from.empty())
    throw InputError("program: give either JOB.toml or --from FILE");
  if (!options.output.empty()) check_writable("-o", options.output);
  Program program = read_program(context, options);
  if (!options.output.empty()) write_file(options.output, to_text(program));
  if (options.check) {
    const LinkedProgram linked = link(std::move(program));
    std::cout << (context.json ? to_json(linked).dump(2) + "\n" : describe(linked));
  } else if (context.json) {
    const nlohmann::ordered_json out{{"schema_version", 1},
                                     {"program_hash", fmt::format("{:016x}", hash_of(program))},
                                     {"text", to_text(program)}};
    std::cout << out.dump(2) << "\n";
  } else if (options.output.empty()) {
    std::cout << to_text(program);
  }
  return good;
}

}  // namespace

void add_program(CLI::App& app, Context& context) {
  CLI::App* command =
      add_command(app, "program", "Print the program that a job compiles to, or check it",
                  "  rehearse program experiments/paper-ddp.toml\n"
                  "  rehearse program experiments/paper-ddp.toml --check\n"
                  "  rehearse program experiments/paper-ddp.toml -o ddp.program\n"
                  "  rehearse program --from ddp.program --check");
  auto options = std::make_shared<Options>();
  command->add_option("JOB.toml", options->job, "What to train, where and how (docs/job.md)");
  command->add_option("--from", options->from, "Read a program's text instead of compiling a job")
      ->type_name("FILE");
  command->add_option("-o,--output", options->output, "Write the text to a file")
      ->type_name("FILE");
  command->add_flag("--check", options->check,
                    "Link it: deadlocks, races, layouts; print roles, channels and memory");
  command->callback([&context, options] {
    context.run = [&context, options] { return run_program(context, *options); };
  });
}

}  // namespace rehearse
