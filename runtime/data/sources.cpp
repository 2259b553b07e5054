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

Sources::Sources(const Clients& clients, const std::vector<std::string>& files,
                 const Shards& shards, const nlohmann::json& manifest, const std::string& where,
                 std::uint64_t seed)
    : drawn_(clients.count > 0), round_(clients.round), seed_(seed) {
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
  const std::string who = drawn_ ? "client" : "data-parallel rank";
  const std::size_t count =
      drawn_ ? static_cast<std::size_t>(clients.count) : clients.samples.size();
  if (inputs.size() < count)
    throw InputError(fmt::format(
        "train.{}: {} has training text of {} input{} ({}) for {} {}s; at most {} {}{}{}",
        drawn_ ? "clients" : "split: \"source\"", where, inputs.size(),
        inputs.size() == 1 ? "" : "s", fmt::join(there, ", "), count, who, inputs.size(),
        drawn_ ? "client" : "rank", inputs.size() == 1 ? "" : "s", drawn_ ? "" : ", or \"iid\""));
  for (std::int64_t begin = 0; const int samples : clients.samples) {
    ranks_.push_back({.begin = begin, .samples = samples});
    begin += samples;
  }
  for (std::size_t client = 0; client < count; ++client) {
    Client& one = clients_.emplace_back();
    std::vector<std::string> own;
    for (std::size_t i = client; i < inputs.size(); i += count) {
      own.push_back(there[i]);
      for (std::size_t file = 0; file < files.size(); ++file)
        if ((*input_of)[file] == inputs[i])
          one.parts.emplace_back(shards.first_window(file), shards.first_window(file + 1));
    }
    for (const auto& [first, end] : one.parts) one.windows += end - first;
    if (one.windows == 0)
      throw InputError(fmt::format(
          "train.split: \"source\": {}: {} {} has the text of {}, which is shorter than a sample "
          "(train.seq_len); give it more text, or use \"iid\"",
          where, who, client, fmt::join(own, ", ")));
  }
}

std::int64_t Sources::player(std::int64_t rank, std::int64_t round) const {
  constexpr std::uint64_t draw_stream = 0x64726177;
  return permute(rank, std::ssize(clients_), hash(hash(seed_, draw_stream), round));
}

std::vector<std::int64_t> Sources::drawn(std::int64_t step) const {
  std::vector<std::int64_t> out;
  for (std::int64_t rank = 0; drawn_ && rank < std::ssize(ranks_); ++rank)
    out.push_back(player(rank, step / round_));
  return out;
}

std::int64_t Sources::window(std::int64_t step, std::int64_t place) const {
  const auto rank = std::prev(std::ranges::upper_bound(ranks_, place, {}, &Rank::begin));
  std::int64_t client = rank - ranks_.begin(), round = 0;
  if (drawn_) {
    round = step / round_, step %= round_;
    client = player(client, round);
  }
  const Client& one = clients_[static_cast<std::size_t>(client)];
  std::uint64_t order = hash(seed_, client);
  if (drawn_) order = hash(order, round);
  const std::int64_t sample = step * rank->samples + place - rank->begin;
  std::int64_t at = permute(sample % one.windows, one.windows, hash(order, sample / one.windows));
  for (const auto& [first, end] : one.parts) {
    if (at < end - first) return first + at;
    at -= end - first;
  }
  return one.parts.back().second - 1;  // not reached: `at` is below the sum of all parts
}

}  // namespace rehearse::runtime
