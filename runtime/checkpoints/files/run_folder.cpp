#include "runtime/checkpoints/files/run_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>
#include <system_error>
#include <utility>

#include "engine/base/errors.h"
#include "runtime/checkpoints/files/checkpoint_reader.h"
#include "runtime/checkpoints/files/safetensors.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view prefix = "step-", half_written = ".part";

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> all;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    all.push_back(entry.path());
  return all;
}

void drop(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error)
    throw BackendError(fmt::format("{}: cannot remove it: {}", path.string(), error.message()));
}

void remove_half_written(const std::string& folder) {
  for (const fs::path& path : entries_of(folder))
    if (path.extension() == half_written && checkpoint_step(path.stem())) drop(path);
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

/// The step of a line of metrics; nothing when the line is incomplete or has none.
std::optional<std::int64_t> step_of(const json& line) {
  if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer())
    return std::nullopt;
  return line["step"].get<std::int64_t>();
}

/// The last step in the metrics of a folder; 0: none.
std::int64_t steps_told(const std::string& folder) {
  for (const std::string& line : lines_of(metrics_path(folder)) | std::views::reverse)
    if (const auto step = step_of(json::parse(line, nullptr, false))) return *step;
  return 0;
}

/// What is wrong with the files of a checkpoint; empty: nothing.
std::string damage_of(const std::string& checkpoint, const std::function<void()>& alive = {}) {
  try {
    CheckpointReader reader(checkpoint, alive);
    for (std::size_t shard = 0; shard < reader.manifest().shards.size(); ++shard)
      reader.verify(shard);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

bool is_whole(const std::string& checkpoint) {
  try {
    return !read_manifest(checkpoint).base;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

std::optional<std::int64_t> checkpoint_step(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  std::int64_t step = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc() || rest != end) return std::nullopt;
  return step;
}

std::string metrics_path(const std::string& folder) {
  return (fs::path(folder) / "metrics.jsonl").string();
}
std::string checkpoint_path(const std::string& folder, std::int64_t step) {
  return (fs::path(folder) / fmt::format("{}{:08}", prefix, step)).string();
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const fs::path& path : entries_of(folder))
    if (const auto step = checkpoint_step(path); step && fs::exists(path / manifest_name))
      found.emplace_back(*step, path.string());
  std::ranges::sort(found);
  const auto paths = std::views::values(found);
  return {paths.begin(), paths.end()};
}

std::optional<std::int64_t> checked_until(const std::string& folder) {
  for (const std::string& line : lines_of(metrics_path(folder)) | std::views::reverse) {
    const json row = json::parse(line, nullptr, false);
    if (row.is_object() && row.contains("checked"))
      if (const auto step = step_of(row)) return step;
  }
  return std::nullopt;
}

std::string find_checkpoint(const std::string& folder_or_checkpoint) {
  if (fs::exists(fs::path(folder_or_checkpoint) / manifest_name)) return folder_or_checkpoint;
  const std::vector<std::string> all = checkpoints_in(folder_or_checkpoint);
  if (all.empty())
    throw InputError(fmt::format("{}: no checkpoint there to resume from", folder_or_checkpoint));
  const auto until = checked_until(folder_or_checkpoint);
  for (const std::string& path : all | std::views::reverse)
    if (!until || checkpoint_step(path) <= *until) return path;
  throw InputError(
      fmt::format("{}: each checkpoint there was {}; --resume-from names one nevertheless",
                  folder_or_checkpoint, not_checked));
}

std::string describe(const PassedOver& passed) {
  return fmt::format("the checkpoint of step {} is passed over: {}", passed.step, passed.why);
}

std::string newest_whole_checkpoint(const std::string& folder, std::vector<PassedOver>& passed) {
  const auto until = checked_until(folder);
  for (const std::string& path : checkpoints_in(folder) | std::views::reverse) {
    const std::int64_t step = *checkpoint_step(path);
    const std::string why = until && step > *until ? path + ": " + not_checked : damage_of(path);
    if (why.empty()) return path;
    passed.push_back({.step = step, .why = why});
  }
  return "";
}

bool lies_in(const std::string& checkpoint, const std::string& folder) {
  std::error_code error;
  const fs::path above = fs::absolute(checkpoint, error).lexically_normal();
  const fs::path parent =
      above.has_filename() ? above.parent_path() : above.parent_path().parent_path();
  return fs::equivalent(parent, folder, error) && !error;
}

void check_unused(const std::string& folder) {
  std::vector<std::string> there, ways;
  if (const std::int64_t steps = steps_told(folder); steps > 0)
    there.push_back(fmt::format("metrics of {} step{}", steps, steps == 1 ? "" : "s"));
  std::vector<std::string> names;
  for (const std::string& path : checkpoints_in(folder))
    names.push_back(fs::path(path).filename().string());
  if (!names.empty()) {
    there.push_back(fmt::format("{}", fmt::join(names, " and ")));
    ways.emplace_back("--resume goes on with it");
  }
  if (there.empty()) return;
  ways.emplace_back("--overwrite replaces it");
  ways.emplace_back("--set train.out=FOLDER keeps it and writes elsewhere");
  throw InputError(fmt::format("train.out = \"{}\": a run is there already ({}): {}", folder,
                               fmt::join(there, ", "), fmt::join(ways, ", ")));
}

void remove_run(const std::string& folder) {
  drop(metrics_path(folder));
  // Removes the newest checkpoint first: if this is interrupted, what is left is a run that can go
  // on.
  for (const std::string& path : checkpoints_in(folder) | std::views::reverse) drop(path);
  remove_half_written(folder);
}

void keep_newest(const std::string& folder) {
  constexpr int most = 2;
  int newest = 0, whole = 0;
  for (const std::string& path : checkpoints_in(folder) | std::views::reverse) {
    const bool counts = whole < most && is_whole(path);
    whole += counts ? 1 : 0;
    std::error_code ignored;
    if (++newest > most && !counts) fs::remove_all(path, ignored);
  }
}

void rewind_run(const std::string& folder, std::int64_t step, bool checked) {
  for (const std::string& path : checkpoints_in(folder) | std::views::reverse)
    if (checkpoint_step(path) > step) drop(path);
  remove_half_written(folder);
  const std::string path = metrics_path(folder);
  if (!fs::exists(path)) return;
  std::string kept;
  for (const std::string& line : lines_of(path)) {
    const json row = json::parse(line, nullptr, false);
    const auto told = step_of(row);
    // A change of plan after this step will be decided again, so its line goes too.
    if (!told || (!checked && row.contains("checked"))) continue;
    if (row.contains("plan") ? *told < step : *told <= step) kept += line + '\n';
  }
  write_durably(path, kept);
}

std::string undamaged_checkpoint_before(const std::string& checkpoint,
                                        const std::function<void()>& alive) {
  if (damage_of(checkpoint, alive).empty()) return "";
  const fs::path path = checkpoint;
  const std::string folder = path.parent_path().empty() ? "." : path.parent_path().string();
  for (const std::string& other : checkpoints_in(folder) | std::views::reverse)
    if (checkpoint_step(other) < checkpoint_step(path) && damage_of(other, alive).empty())
      return fmt::format("; the one before it is whole: --resume-from {}", other);
  return "";
}

}  // namespace rehearse::runtime
