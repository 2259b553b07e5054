#include "runtime/checkpoints/files/manifest.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <utility>

#include "engine/base/files/files.h"
#include "engine/base/files/json_reader.h"
#include "engine/base/fnv.h"
#include "engine/base/names.h"

namespace rehearse::runtime {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view format_name = "rehearse-checkpoint";
// Every manifest ends with `mark`, 16 hexadecimal digits and `end`.
constexpr std::string_view mark = ",\n \"checksum\": \"", end = "\"\n}\n";
constexpr std::size_t digits = 16;
constexpr int most_ranks = 1 << 20, most_ages = 65535;
// most_ranks (tensor-parallel parts) x most_elements fits into 64 bits.
constexpr std::int64_t most_elements = std::int64_t{1} << 42;

std::string sum_text(std::string_view content) {
  return hash_text(checksum_of(std::as_bytes(std::span(content))));
}

Json to_json(const tensors::PartKey& key) {
  return {{"kind", name_of(key.kind)}, {"age", key.age},         {"tensor", key.tensor},
          {"copy", key.copy},          {"tp_rank", key.tp_rank}, {"tp_size", key.tp_size},
          {"begin", key.begin},        {"end", key.end}};
}

std::uint64_t read_hex(JsonReader& in, const char* key) {
  const std::string text = in.text(key);
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text != hash_text(value))
    in.fail(fmt::format("\"{}\" = \"{}\": must be 16 hexadecimal digits", key, text));
  return value;
}

std::string read_name(JsonReader& in, const char* key) {
  std::string text = in.text(key);
  if (text.empty()) in.fail(fmt::format("\"{}\" is empty", key));
  return text;
}

tensors::PartKey read_part(JsonReader& in, int ranks) {
  tensors::PartKey key;
  key.kind = in.choice<tensors::StorageKind>("kind");
  key.age = in.integer("age", 1, most_ages);
  key.tensor = read_name(in, "tensor");
  key.copy = in.integer("copy", 0, ranks - 1);
  key.tp_size = in.integer("tp_size", 1, ranks);
  key.tp_rank = in.integer("tp_rank", 0, key.tp_size - 1);
  key.end = in.integer<std::int64_t>("end", 1, most_elements);
  key.begin = in.integer<std::int64_t>("begin", 0, key.end - 1);
  return key;
}

/// The rank in a shard's file name; any number when it is no such name.
Id rank_of(const std::string& file) {
  Id rank = 0;
  const std::size_t number = file.find('-') + 1;
  std::from_chars(file.data() + number, file.data() + file.size(), rank);
  return rank;
}

ShardRecord read_shard(JsonReader& in, int ranks) {
  ShardRecord shard{.file = in.text("file")};
  const Id rank = rank_of(shard.file);
  if (shard.file != shard_name(rank) || rank >= static_cast<Id>(ranks))
    in.fail(fmt::format("\"file\" = \"{}\": must be the shard of one of {} ranks, as in \"{}\"",
                        shard.file, ranks, shard_name(0)));
  shard.sum = {.bytes = in.integer<std::int64_t>("bytes", 8), .checksum = read_hex(in, "checksum")};
  in.list("parts", [&](JsonReader& part) { shard.parts.push_back(read_part(part, ranks)); });
  if (shard.parts.empty()) in.fail("\"parts\" is empty");
  return shard;
}

/// Reads the mesh. The product of its sizes is at most the number of ranks; the other ranks are
/// servers.
std::vector<program::Axis> read_mesh(JsonReader& in, int ranks) {
  std::vector<program::Axis> mesh;
  std::int64_t product = 1;
  in.list("mesh", [&](JsonReader& axis) {
    mesh.push_back({.name = read_name(axis, "name"), .size = axis.integer("size", 1, ranks)});
    product *= mesh.back().size;
    if (product > ranks) axis.fail(fmt::format("a mesh of more than the {} ranks", ranks));
  });
  return mesh;
}

BaseRecord read_base(const Json& json, const std::string& path, std::int64_t step) {
  JsonReader in(json, path + ": base");
  BaseRecord base{.step = in.integer<std::int64_t>("step", 0, most_steps),
                  .checksum = read_hex(in, "checksum"),
                  .bits = in.integer("bits", 0, 16),
                  .changed = in.number("changed"),
                  .error = in.number("error"),
                  .relative_error = in.number("relative_error")};
  if (base.step >= step)
    in.fail(fmt::format("\"step\" = {}: must be before {}, the checkpoint's own", base.step, step));
  in.done();
  return base;
}

DataRecord read_data(const Json& json, const std::string& path) {
  JsonReader in(json, path + ": data");
  DataRecord data{.tokenizer = in.text("tokenizer"), .shards = read_hex(in, "shards")};
  in.done();
  return data;
}

std::vector<std::optional<std::int64_t>> read_own_steps(JsonReader& in, int ranks) {
  const Json& list = in.at("own_steps");
  if (!list.is_array() || list.size() != static_cast<std::size_t>(ranks))
    in.fail(fmt::format("\"own_steps\" must be a list of {} steps", ranks));
  std::vector<std::optional<std::int64_t>> steps;
  for (const Json& one : list) {
    steps.emplace_back();
    if (!one.is_null())
      steps.back() = in.integer_of<std::int64_t>(one, "\"own_steps\"", 0, most_steps);
  }
  return steps;
}

/// Says what is wrong with a manifest that does not end with its checksum.
std::string why_unsealed(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_object() && json.contains("format") && json["format"] == format_name &&
      json.contains("version") && json["version"] == 1)
    return fmt::format(
        "checkpoint format version 1, which has no checksum of its manifest; this program reads "
        "version {} only: go on with the version of the program that saved it, or begin anew",
        checkpoint_version);
  return "damaged or truncated: it does not end with its checksum";
}

}  // namespace

std::string shard_name(Id rank) { return fmt::format("rank-{:05}.safetensors", rank); }

std::string to_text(const Manifest& m) {
  Json mesh = Json::array(), own_steps = Json::array(), shards = Json::array();
  for (const program::Axis& axis : m.mesh)
    mesh.push_back({{"name", axis.name}, {"size", axis.size}});
  for (const auto& own : m.own_steps) own_steps.push_back(own ? Json(*own) : Json());
  for (const ShardRecord& shard : m.shards) {
    Json parts = Json::array();
    for (const tensors::PartKey& key : shard.parts) parts.push_back(to_json(key));
    shards.push_back({{"file", shard.file},
                      {"bytes", shard.sum.bytes},
                      {"checksum", hash_text(shard.sum.checksum)},
                      {"parts", std::move(parts)}});
  }
  Json json = {{"format", format_name},
               {"version", checkpoint_version},
               {"step", m.step},
               {"skipped_updates", m.skipped_updates},
               {"own_steps", std::move(own_steps)},
               {"method", m.method},
               {"model", m.model},
               {"mesh", std::move(mesh)},
               {"world_size", m.world_size},
               {"program_hash", hash_text(m.program_hash)},
               {"seed", m.seed},
               {"global_batch", m.global_batch},
               {"seq_len", m.seq_len},
               {"placements", m.record.placements},
               {"plan", m.record.plan}};
  if (m.frozen_at > 0) json["frozen_at"] = m.frozen_at;
  if (m.data)
    json["data"] = {{"tokenizer", m.data->tokenizer}, {"shards", hash_text(m.data->shards)}};
  if (m.base)
    json["base"] = {{"step", m.base->step},   {"checksum", hash_text(m.base->checksum)},
                    {"bits", m.base->bits},   {"changed", m.base->changed},
                    {"error", m.base->error}, {"relative_error", m.base->relative_error}};
  json["shards"] = std::move(shards);
  std::string content = json.dump(1);
  content.resize(content.size() - 2);  // "\n}"
  return fmt::format("{}{}{}{}", content, mark, sum_text(content), end);
}

std::uint64_t checksum_in(const std::string& text) {
  std::uint64_t value = 0;
  const char* const begin = text.data() + text.size() - end.size() - digits;
  std::from_chars(begin, begin + digits, value, 16);
  return value;
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const std::size_t tail = mark.size() + digits + end.size();
  const std::string_view all = text;
  if (all.size() < tail || all.substr(all.size() - tail, mark.size()) != mark ||
      !all.ends_with(end))
    throw InputError(fmt::format("{}: {}", path, why_unsealed(text)));
  const std::string_view content = all.substr(0, all.size() - tail);
  const std::string_view said = all.substr(content.size() + mark.size(), digits);
  if (const std::string found = sum_text(content); found != said)
    throw InputError(
        fmt::format("{}: damaged or changed: its content has checksum {}, its last line says {}",
                    path, found, said));
  return parse_manifest_content(text, path);
}

Manifest parse_manifest_content(std::string_view text, const std::string& path) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) throw InputError(fmt::format("{}: damaged: not JSON", path));
  JsonReader in(json, path);
  if (in.text("format") != format_name) in.fail("not a checkpoint's manifest");
  if (const int version = in.integer("version"); version != checkpoint_version)
    in.fail(fmt::format("checkpoint format version {}; this program reads version {} only", version,
                        checkpoint_version));
  Manifest m;
  m.checksum = read_hex(in, "checksum");
  m.step = in.integer<std::int64_t>("step", 0, most_steps);
  m.skipped_updates = in.integer<std::int64_t>("skipped_updates", 0, most_steps);
  if (json.contains("frozen_at"))
    m.frozen_at = in.integer<std::int64_t>("frozen_at", 1, most_steps);
  m.world_size = in.integer("world_size", 1, most_ranks);
  m.own_steps = read_own_steps(in, m.world_size);
  m.method = read_name(in, "method");
  m.model = read_name(in, "model");
  m.mesh = read_mesh(in, m.world_size);
  m.program_hash = read_hex(in, "program_hash");
  m.seed = in.integer<std::uint64_t>("seed");
  m.global_batch = in.integer("global_batch", 1);
  m.seq_len = in.integer("seq_len", 1);
  m.record = {.placements = in.integer("placements"), .plan = in.text("plan")};
  if ((m.record.placements > 0) == m.record.plan.empty())
    in.fail(fmt::format("\"placements\" = {}: {} plan", m.record.placements,
                        m.record.plan.empty() ? "there is no" : "there is a"));
  if (json.contains("data")) m.data = read_data(in.at("data"), path);
  if (json.contains("base")) m.base = read_base(in.at("base"), path, m.step);
  in.list("shards", [&](JsonReader& shard) {
    m.shards.push_back(read_shard(shard, m.world_size));
    if (m.shards.size() > 1 &&
        rank_of(m.shards[m.shards.size() - 2].file) >= rank_of(m.shards.back().file))
      shard.fail("shards must be in the order of ranks, each once");
  });
  in.done();
  return m;
}

Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = (std::filesystem::path(checkpoint) / manifest_name).string();
  return parse_manifest(read_file(path), path);
}

}  // namespace rehearse::runtime
