#include "runtime/data/sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/errors.h"
#include "runtime/data/permute.h"

namespace rehearse::runtime {
namespace {

/// The input that each file is of, as the manifest says; none: it does not say.
std::optional<std::vector<std::size_t>> inputs_of(const std::vector<std::string>& files,
                                                  const nlohmann::json& manifest,
                                                  std::size_t inputs) {
  const nlohmann::json::json_pointer path("/train/shards");
  if (!manifest.is_object() || !manifest.contains(path) || !manifest[path].is_array()) return {};
  std::vector<std::size_t> out;
  for (const std::string& file : files) {
    const std::string name = std::filesystem::path(file).filename().string();
    const auto& shards = manifest[path];
    const auto shard = std::ranges::find_if(shards, [&](const nlohmann::json& one) {
      return one.is_object() && one.contains("file") && one["file"] == name;
    });
    if (shard == shards.end() || !shard->contains("input") ||
        !(*shard)["input"].is_number_unsigned() || (*shard)["input"] >= inputs)
      return {};
    out.push_back((*shard)["input"].get<std::size_t>());
  }
  return out;
}

/// The names of the inputs in the manifest; "1", "2", ... where it has none.
std::vector<std::string> names_of_inputs(const nlohmann::json& manifest) {
  std::vector<std::string> names;
  if (!manifest.is_object() || !manifest.contains("inputs") || !manifest["inputs"].is_array())
    return names;
  for (const nlohmann::json& input : manifest["inputs"])
    names.push_back(input.is_object() && input.contains("name") && input["name"].is_string()
                        ? input["name"].get<std::string>()
                        : std::to_string(names.size() + 1));
  return names;
}

}  // namespace

Sources::Sources(const std::vector<int>& samples, const std::vector<std::string>& files,
                 const Shards& shards, const nlohmann::json& manifest, const std::string& where) {
  const std::vector<std::string> names = names_of_inputs(manifest);
  const auto input_of = inputs_of(files, manifest, names.size());
  if (!input_of)
    throw InputError(fmt::format(
        "train.split: \"source\" needs to know which input each text is of, and the manifest of {} "
        "does not say; make the data with data/prepare.py --by-input, or use \"iid\"",
        where));
  std::vector<std::size_t> inputs = *input_of;
  std::ranges::sort(inputs);
  inputs.erase(std::ranges::unique(inputs).begin(), inputs.end());
  std::vector<std::string> there;
  for (const std::size_t input : inputs) there.push_back(names[input]);
  if (inputs.size() < samples.size())
    throw InputError(fmt::format(
        "train.split: \"source\": {} has training text of {} input{} ({}) for {} data-parallel "
        "ranks; at most {} rank{}, or \"iid\"",
        where, inputs.size(), inputs.size() == 1 ? "" : "s", fmt::join(there, ", "), samples.size(),
        inputs.size(), inputs.size() == 1 ? "" : "s"));
  std::int64_t begin = 0;
  for (std::size_t client = 0; client < samples.size(); ++client) {
    Client& one = clients_.emplace_back();
    one.begin = begin, one.samples = samples[client];
    begin += one.samples;
    std::vector<std::string> own;
    for (std::size_t i = client; i < inputs.size(); i += samples.size()) {
      own.push_back(there[i]);
      for (std::size_t file = 0; file < files.size(); ++file)
        if ((*input_of)[file] == inputs[i])
          one.parts.emplace_back(shards.first_window(file), shards.first_window(file + 1));
    }
    for (const auto& [first, end] : one.parts) one.windows += end - first;
    if (one.windows == 0)
      throw InputError(fmt::format(
          "train.split: \"source\": {}: data-parallel rank {} has the text of {}, which is shorter "
          "than a sample (train.seq_len); give it more text, or use \"iid\"",
          where, client, fmt::join(own, ", ")));
  }
}

std::int64_t Sources::window(std::int64_t step, std::int64_t place, std::uint64_t order) const {
  const auto behind = std::ranges::upper_bound(clients_, place, {}, &Client::begin);
  const Client& one = *std::prev(behind);
  const std::int64_t sample = step * one.samples + place - one.begin;
  const auto client = static_cast<std::uint64_t>(std::prev(behind) - clients_.begin());
  std::int64_t at =
      permute(sample % one.windows, one.windows, hash(hash(order, client), sample / one.windows));
  for (const auto& [first, end] : one.parts) {
    if (at < end - first) return first + at;
    at -= end - first;
  }
  return one.parts.back().second - 1;  // not reached: `at` is below the sum of all parts
}

}  // namespace rehearse::runtime
