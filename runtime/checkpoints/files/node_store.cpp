#include "runtime/checkpoints/files/node_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>

#include "engine/base/errors.h"
#include "runtime/checkpoints/files/safetensors.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::uint64_t hash_of(const std::string& text) {
  return checksum_of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

bool undamaged(const fs::path& path, const FileSum& sum) {
  try {
    const SafetensorsFile file(path.string(), sum);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Adds what a folder step-N has.
void look_at(const fs::path& checkpoint, std::map<std::uint64_t, HeldCheckpoint>& found) {
  const std::string text = text_of(checkpoint / manifest_name);
  Manifest manifest;
  try {
    manifest = parse_manifest(text, (checkpoint / manifest_name).string());
  } catch (const InputError&) {
    // Other nodes have copies, or an older checkpoint is taken.
    HeldCheckpoint& held = found[hash_of(checkpoint.string())];
    held.step = *checkpoint_step(checkpoint.string());
    held.identity = hash_of(checkpoint.string());
    held.files[manifest_name] = 0;
    held.damaged.push_back((checkpoint / manifest_name).string());
    return;
  }
  HeldCheckpoint& held = found[hash_of(text)];
  held.step = manifest.step;
  held.identity = hash_of(text);
  held.paths[manifest_name] = (checkpoint / manifest_name).string();
  held.files[manifest_name] = static_cast<std::int64_t>(text.size());
  for (const ShardRecord& shard : manifest.shards) {
    held.files[shard.file] = shard.sum.bytes;
    const fs::path path = checkpoint / shard.file;
    if (held.paths.contains(shard.file) || !fs::exists(path)) continue;
    if (undamaged(path, shard.sum))
      held.paths[shard.file] = path.string();
    else
      held.damaged.push_back(path.string());
  }
}

}  // namespace

NodeStore::NodeStore(const job::Job& job) {
  const bool peer = job.checkpoint.kind == job::CheckpointKind::peer;
  if (!peer && job.checkpoint.place == job::CheckpointPlace::shared) return;
  if (job.train.out.empty() || job.checkpoint.folder.empty()) return;
  const std::string run = fs::weakly_canonical(fs::absolute(job.train.out)).string();
  root_ =
      (fs::path(job.checkpoint.folder) / fmt::format("rehearse-{:016x}", hash_of(run))).string();
  if (peer) group_ = job.checkpoint.group;
  std::map<Id, std::vector<Id>> ranks;
  const std::vector<Id>& devices = job.plan.placement.rank_to_device;
  for (Id rank = 0; rank < devices.size(); ++rank)
    ranks[job.cluster.devices()[devices[rank]].node].push_back(rank);
  node_of_.resize(devices.size());
  for (const auto& [node, on] : ranks) {
    for (const Id rank : on) node_of_[rank] = ranks_on_.size();
    ranks_on_.push_back(on);
    number_.push_back(node);
  }
}

std::string NodeStore::folder_of(Id rank) const {
  return (fs::path(root_) / fmt::format("node-{}", number_[node_of_[rank]])).string();
}

Id NodeStore::leader_of(Id rank) const { return ranks_on_[node_of_[rank]].front(); }

std::vector<Id> NodeStore::peers_of(Id rank) const {
  const auto group = static_cast<std::size_t>(group_);
  if (group_ < 2) return {};
  const std::size_t nodes = ranks_on_.size();
  const std::size_t mine = node_of_[rank];
  std::size_t begin = mine / group * group;
  std::size_t end = begin + group;
  if (begin + 1 == nodes && begin > 0) begin -= group;  // alone
  if (end + 1 >= nodes) end = nodes;
  const std::vector<Id>& beside = ranks_on_[mine];
  const auto place = static_cast<std::size_t>(std::ranges::find(beside, rank) - beside.begin());
  std::vector<Id> peers;
  for (std::size_t node = begin; node < end; ++node)
    if (node != mine) peers.push_back(ranks_on_[node][place % ranks_on_[node].size()]);
  return peers;
}

std::vector<Id> NodeStore::kept_by(Id rank) const {
  std::vector<Id> kept;
  for (Id other = 0; other < node_of_.size(); ++other)
    if (std::ranges::count(peers_of(other), rank) > 0) kept.push_back(other);
  return kept;
}

std::vector<HeldCheckpoint> held_in(const std::string& root) {
  std::map<std::uint64_t, HeldCheckpoint> found;
  std::error_code ignored;
  for (const fs::directory_entry& node : fs::directory_iterator(root, ignored))
    if (node.path().filename().string().starts_with("node-"))
      for (const std::string& checkpoint : checkpoints_in(node.path().string()))
        look_at(checkpoint, found);
  std::vector<HeldCheckpoint> all;
  for (auto& [identity, held] : found) all.push_back(std::move(held));
  return all;
}

std::string to_json(const std::vector<HeldCheckpoint>& held) {
  json all = json::array();
  for (const HeldCheckpoint& h : held)
    all.push_back({{"step", h.step},
                   {"identity", h.identity},
                   {"files", h.files},
                   {"paths", h.paths},
                   {"damaged", h.damaged}});
  return all.dump();
}

std::vector<HeldCheckpoint> held_from_json(const std::string& text) {
  const char* broken = "a list of checkpoints that is none";
  // The library would convert what is no whole number, with an undefined result if it is large.
  const auto whole = [&](const json& number) {
    if (!number.is_number_integer()) throw BackendError(broken);
    return number;
  };
  std::vector<HeldCheckpoint> all;
  try {
    for (const json& h : json::parse(text)) {
      HeldCheckpoint& held = all.emplace_back();
      held.step = whole(h.at("step"));
      held.identity = whole(h.at("identity"));
      for (const auto& [file, bytes] : h.at("files").items()) held.files[file] = whole(bytes);
      held.paths = h.at("paths");
      held.damaged = h.at("damaged");
    }
  } catch (const json::exception&) {
    throw BackendError(broken);
  }
  return all;
}

namespace {

/// What the hosts have of a checkpoint if they put their files together.
struct Union {
  std::int64_t step = 0;
  std::set<std::string> needed = {}, there = {}, damaged = {};
};

std::map<std::uint64_t, Union> together_of(const std::vector<std::vector<HeldCheckpoint>>& hosts) {
  std::map<std::uint64_t, Union> all;
  for (const auto& host : hosts)
    for (const HeldCheckpoint& h : host) {
      Union& u = all[h.identity];
      u.step = h.step;
      for (const auto& [file, bytes] : h.files) u.needed.insert(file);
      for (const auto& [file, path] : h.paths) u.there.insert(file);
      u.damaged.insert(h.damaged.begin(), h.damaged.end());
    }
  return all;
}

}  // namespace

std::optional<NewestHeld> newest_of(const std::vector<std::vector<HeldCheckpoint>>& hosts,
                                    std::optional<std::int64_t> until) {
  std::optional<NewestHeld> newest;
  for (const auto& [identity, u] : together_of(hosts))
    if (u.needed == u.there && (!until || u.step <= *until) && (!newest || u.step > newest->step))
      newest = {.step = u.step, .identity = identity};
  return newest;
}

std::vector<PassedOver> passed_over(const std::vector<std::vector<HeldCheckpoint>>& hosts,
                                    std::int64_t step) {
  std::vector<PassedOver> out;
  for (const auto& [identity, u] : together_of(hosts)) {
    if (u.step <= step) continue;
    std::vector<std::string> why;
    for (const std::string& path : u.damaged)
      if (!u.there.contains(fs::path(path).filename().string()))
        why.push_back(path + ": damaged, and no node has a copy");
    for (const std::string& file : u.needed)
      if (!u.there.contains(file) && std::ranges::none_of(u.damaged, [&](const std::string& path) {
            return fs::path(path).filename() == file;
          }))
        why.push_back(file + ": on no node that is left");
    out.push_back({.step = u.step,
                   .why = why.empty() ? not_checked : fmt::format("{}", fmt::join(why, ", "))});
  }
  return out;
}

void rewind_node(const std::string& folder, std::int64_t step) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  rewind_run(folder, step, false);
  if (step < 0) fs::remove(folder, error);
  // The last node removes the run's folder: an empty one can be removed, others cannot.
  if (step < 0) fs::remove(fs::path(folder).parent_path(), error);
}

}  // namespace rehearse::runtime
