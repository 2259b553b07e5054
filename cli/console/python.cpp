#include "cli/console/python.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "cli/console/files.h"
#include "cli/console/spawn.h"
#include "engine/base/errors.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/files/files.h"
#include "engine/base/terms.h"

namespace rehearse::cli {
std::string find_python() {
  if (const char* given = std::getenv("REHEARSE_PYTHON"); given != nullptr && *given != '\0')
    return access(given, X_OK) == 0 ? given : "";
  const std::string python = (data_dir() / "tools/python").string();
  if (access(python.c_str(), X_OK) != 0) return "";
  return run_program({python, "-c", ""}, true).status == 0 ? python : "";
}

std::string need_python(const std::string& flag) {
  std::string python = find_python();
  if (python.empty())
    throw InputError(
        fmt::format("{} needs Python with matplotlib, jinja2 and msgspec: run {} python, or set "
                    "REHEARSE_PYTHON to an interpreter that has them",
                    flag, (data_dir() / "tools/setup").string()));
  return python;
}

std::string run_script(const std::string& python, const std::string& script,
                       const std::vector<std::string>& arguments) {
  std::vector<std::string> all{python, (data_dir() / script).string()};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const Finished done = run_program(all, true);
  if (done.status == 0) return done.output;
  std::string said = done.output;
  while (!said.empty() && said.back() == '\n') said.pop_back();
  throw BackendError(fmt::format("{} failed: {}", script, said.substr(said.rfind('\n') + 1)));
}

void run_report(const std::string& python, const std::vector<std::string>& arguments) {
  run_script(python, "plots/report.py", arguments);
}

std::string check_result_file(const std::string& path) {
  if (path.empty()) return "";
  const std::string end = folded(std::filesystem::path(path).extension().string());
  constexpr std::array<std::string_view, 5> ends{".json", ".html", ".svg", ".png", ".pdf"};
  if (std::ranges::find(ends, end) == ends.end())
    throw InputError(
        fmt::format("--output {}: the name must end in {}", path, fmt::join(ends, ", ")));
  check_writable("--output", path);
  return path.ends_with(".json") ? "" : need_python("--output");
}

void write_result_file(const std::string& path, const std::string& json,
                       const std::string& python) {
  if (path.empty()) return;
  if (python.empty()) return write_file(path, json);
  const TemporaryFolder folder;
  write_file(folder.file("result.json"), json);
  run_report(python, {folder.file("result.json"), "-o", path, "--quiet"});
}

}  // namespace rehearse::cli
