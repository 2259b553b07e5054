#include "cli/study/study_options.h"

#include <fmt/format.h>

#include <filesystem>

#include "cli/console/files.h"
#include "cli/console/python.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::cli {

void add_study_flags(CLI::App& command, StudyFlags& flags) {
  add_job(command, flags.job);
  command
      .add_option("--fidelity", flags.fidelity,
                  "analytic (nothing contends), fluid or chunk (SimGrid)")
      ->check(CLI::IsMember(names_of<Fidelity>()))
      ->capture_default_str();
  command.add_option("--seeds", flags.seeds, "Runs with different draws of [disturb]")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command.add_option("--report", flags.report, "Write an HTML report with pictures")
      ->type_name("FILE");
  command.add_option("-o,--output", flags.output, "Also write the JSON to a file")
      ->type_name("FILE");
  command.add_flag("--timings", flags.timings, "Also print how long this took, in wall clock");
}

void check_report(const std::string& path) {
  const std::string end = std::filesystem::path(path).extension().string();
  if (end != ".html")
    throw InputError(fmt::format("--report {}: the name must end in .html", path));
  check_writable("--report", path);
}

StudyOptions study_options(const StudyFlags& flags, Teller& teller) {
  if (!flags.report.empty()) check_report(flags.report);
  if (!flags.output.empty()) check_writable("-o", flags.output);
  StudyOptions out;
  out.fidelity = *from_name<Fidelity>(flags.fidelity);
  out.seeds = flags.seeds;
  out.teller = &teller;
  return out;
}

}  // namespace rehearse::cli
