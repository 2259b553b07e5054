#include "cli/commands/study_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "cli/console/files.h"
#include "cli/console/python.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::cli {
namespace {

/// "1%" is 0.01.
double parse_precision(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    return InputError(fmt::format("--precision {}: {}", text, why));
  };
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || !std::isfinite(value))
    throw refuse("not a percentage such as 1%; 0% runs all steps");
  const std::string unit(rest, end);
  if (value == 0 && unit.empty()) return 0;
  if (unit != "%")
    throw refuse(
        fmt::format("must be a percentage; nearest: {:.4g}%",
                    std::clamp(unit.empty() && value < 0.5 ? 100 * value : value, 0.0, 100.0)));
  if (value < 0) throw refuse("must be at least 0%, which runs all steps; nearest: 0%");
  if (value > 100) throw refuse("must be at most 100%; nearest: 100%");
  return value / 100;
}

}  // namespace

void add_prediction_flags(const Command& command, StudyFlags& flags) {
  command
      .option("--fidelity", flags.fidelity, "analytic (nothing contends), fluid or chunk (SimGrid)")
      .one_of(names_of<study::Fidelity>())
      .shows_default();
  command.option("--seeds", flags.seeds, "Runs with different draws of [disturb]")
      .between(1, 10000)
      .shows_default();
  command
      .option("--precision", flags.precision,
              "Stop a run when its mean step time is known to this share, with 95% "
              "confidence; 0%: run all steps")
      .type("PERCENT")
      .shows_default();
}

void add_study_flags(const Command& command, StudyFlags& flags) {
  command.job(flags.job).required();
  add_prediction_flags(command, flags);
  command.option("--report", flags.report, "Write an HTML report with pictures").type("FILE");
  command.option("-o,--output", flags.output, "Also write the JSON to a file").type("FILE");
  command.flag("--timings", flags.timings, "Also print how long this took, in wall clock");
}

void check_report(const std::string& path) {
  const std::string end = std::filesystem::path(path).extension().string();
  if (end != ".html")
    throw InputError(fmt::format("--report {}: the name must end in .html", path));
  check_writable("--report", path);
}

study::StudyOptions study_options(const StudyFlags& flags, Teller& teller) {
  if (!flags.report.empty()) check_report(flags.report);
  if (!flags.output.empty()) check_writable("-o", flags.output);
  study::StudyOptions out;
  out.fidelity = *from_name<study::Fidelity>(flags.fidelity);
  out.seeds = flags.seeds;
  out.precision = parse_precision(flags.precision);
  out.progress = &teller;
  return out;
}

}  // namespace rehearse::cli
