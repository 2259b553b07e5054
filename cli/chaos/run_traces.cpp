#include "cli/chaos/run_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

namespace rehearse::cli {
namespace {

namespace fs = std::filesystem;

std::string text_in(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

fs::path checkpoint_in(const std::string& out, std::int64_t step) {
  return fs::path(out) / fmt::format("step-{:08}", step);
}

}  // namespace

std::map<std::int64_t, std::vector<double>> losses_in(const std::string& out) {
  std::map<std::int64_t, std::vector<double>> found;
  std::ifstream in(fs::path(out) / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("loss") || !row.contains("step")) continue;
    // A loss that is not finite is written as null.
    const double loss = row["loss"].is_number() ? row["loss"].get<double>()
                                                : std::numeric_limits<double>::quiet_NaN();
    found[row["step"].get<std::int64_t>()].push_back(loss);
  }
  return found;
}

std::size_t lines_in(const std::string& path) {
  std::ifstream in(path);
  return static_cast<std::size_t>(
      std::count(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>(), '\n'));
}

std::map<std::string, std::string> state_in(const std::string& out, std::int64_t step) {
  std::map<std::string, std::string> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint_in(out, step), ignored))
    if (entry.path().extension() == ".safetensors")
      files[entry.path().filename().string()] = text_in(entry.path());
  return files;
}

bool has_checkpoint(const std::string& out) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(out, ignored))
    if (fs::exists(entry.path() / "manifest.json", ignored) && entry.path().extension() != ".part")
      return true;
  return false;
}

std::set<int> blamed_in(const std::string& said) {
  std::set<int> ranks;
  static const std::regex verdict("rehearse: rank (\\d+) ");
  static const std::regex wrong(
      "rehearse: wrong numbers after step \\d+ on (?:one of )?ranks? ([0-9, ]+):");
  static const std::regex number("\\d+");
  for (std::sregex_iterator it(said.begin(), said.end(), verdict), end; it != end; ++it)
    ranks.insert(std::stoi((*it)[1]));
  for (std::sregex_iterator it(said.begin(), said.end(), wrong), end; it != end; ++it) {
    const std::string list = (*it)[1];
    for (std::sregex_iterator n(list.begin(), list.end(), number); n != end; ++n)
      ranks.insert(std::stoi(n->str()));
  }
  return ranks;
}

std::string last_error(const std::string& said) {
  std::istringstream lines(said);
  std::string last, error;
  for (std::string line; std::getline(lines, line);) {
    if (const auto at = line.find("rehearse: "); at != std::string::npos)
      error = line.substr(at + 10);
    if (!line.empty()) last = line;
  }
  return error.empty() ? last : error;
}

std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (text_in(entry.path() / "cmdline").find(text) != std::string::npos)
      found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

std::map<int, pid_t> ranks_of(pid_t launcher) {
  std::map<int, pid_t> ranks;
  std::istringstream children(text_in(fmt::format("/proc/{0}/task/{0}/children", launcher)));
  for (pid_t child = 0; children >> child;) {
    const std::string name = text_in(fmt::format("/proc/{}/comm", child));
    if (int rank = 0; std::sscanf(name.c_str(), "rehearse r%d", &rank) == 1) ranks[rank] = child;
  }
  return ranks;
}

}  // namespace rehearse::cli
