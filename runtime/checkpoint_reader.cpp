#include "runtime/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/errors.h"
#include "engine/json_text.h"

namespace rehearse {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

PartKey key_of(const json& j) {
  PartKey key{.age = j.at("age"),
              .tensor = j.at("tensor"),
              .copy = j.at("copy"),
              .tp_rank = j.at("tp_rank"),
              .tp_size = j.at("tp_size"),
              .begin = j.at("begin"),
              .end = j.at("end")};
  const auto kind = j.at("kind").get<std::string>();
  key.kind = Kind::other;
  for (const Kind known : {Kind::param, Kind::moment1, Kind::moment2, Kind::master, Kind::residual,
                           Kind::scale, Kind::grad})
    if (kind == kind_name(known)) key.kind = known;
  return key;
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& folder) : folder_(folder) {
  const fs::path path = fs::path(folder_) / "manifest.json";
  std::ifstream file(path);
  if (!file) throw InputError(fmt::format("{}: cannot read it", path.string()));
  try {
    const json manifest = json::parse(file);
    if (manifest.at("format") != "rehearse-checkpoint")
      throw InputError(fmt::format("{}: not a checkpoint's manifest", path.string()));
    if (const int version = manifest.at("version"); version != checkpoint_version)
      throw InputError(fmt::format("{}: checkpoint format version {}; this program knows {}",
                                   path.string(), version, checkpoint_version));
    step_ = manifest.at("step");
    skipped_updates_ = manifest.value("skipped_updates", std::int64_t{0});
    for (const json& own : manifest.value("own_steps", json::array()))
      own_steps_.push_back(own.is_null() ? step_ : own.get<std::int64_t>());
    model_ = manifest.at("model");
    method_ = manifest.at("method");
    record_ = {.placements = manifest.value("placements", 0), .plan = manifest.value("plan", "")};
    for (const json& shard : manifest.at("shards"))
      for (const json& part : shard.at("parts")) {
        const PartKey key = key_of(part);
        places_[{key.kind, key.tensor}].push_back({key, shard.at("file"), shard.at("checksum")});
      }
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: damaged: {}", path.string(), words_of(error)));
  }
}

std::int64_t CheckpointReader::own_step(Id rank) const {
  return rank < own_steps_.size() ? own_steps_[rank] : step_;
}

std::vector<std::byte> CheckpointReader::whole(Kind kind, const std::string& tensor, int age,
                                               int copy, const TensorSpec* spec, DType dtype) {
  const auto found = places_.find({kind, tensor});
  if (found == places_.end()) return {};
  const int width = static_cast<int>(size_of(dtype));
  std::vector<std::byte> bytes;
  std::int64_t elements = 0, filled = 0;
  for (const Place& place : found->second) {
    if (place.key.age != age || place.key.copy != copy) continue;
    if (bytes.empty()) {
      elements = spec != nullptr ? elements_of(*spec) : place.key.end;
      bytes.resize(elements * width);
    }
    const TensorEntry entry = read(place);
    const std::int64_t count = place.key.end - place.key.begin;
    if (entry.dtype != dtype)
      throw InputError(fmt::format(
          "{}: {} {} was saved in another precision; go on with the precision it was saved in",
          folder_, kind_name(kind), tensor));
    if (entry.data.size() != static_cast<std::size_t>(count * width) || place.key.begin < 0 ||
        place.key.end * place.key.tp_size > elements)
      throw InputError(fmt::format("{}: {} {} has another shape in this model", folder_,
                                   kind_name(kind), tensor));
    auto* const data = const_cast<std::byte*>(entry.data.data());  // only read
    if (spec != nullptr)
      copy_part(*spec, place.key.tp_size > 1, place.key.tp_rank, place.key.tp_size, place.key.begin,
                place.key.end, width, bytes.data(), data, Direction::to_whole);
    else
      std::memcpy(bytes.data() + place.key.begin * width, data, entry.data.size());
    filled += count;
  }
  if (filled != elements)
    throw InputError(fmt::format("{}: {} of {} elements of {} {} are missing", folder_,
                                 elements - filled, elements, kind_name(kind), tensor));
  return bytes;
}

int CheckpointReader::copies(Kind kind, const std::string& tensor) const {
  const auto found = places_.find({kind, tensor});
  int count = 0;
  if (found != places_.end())
    for (const Place& place : found->second) count = std::max(count, place.key.copy + 1);
  return count;
}

DType CheckpointReader::dtype_of(Kind kind, const std::string& tensor) {
  const auto found = places_.find({kind, tensor});
  return found == places_.end() ? DType::f32 : read(found->second.front()).dtype;
}

TensorEntry CheckpointReader::read(const Place& place) {
  std::unique_ptr<SafetensorsFile>& file = files_[place.file];
  const std::string path = (fs::path(folder_) / place.file).string();
  if (file == nullptr) {
    file = std::make_unique<SafetensorsFile>(path);
    if (fmt::format("{:016x}", file->checksum()) != place.checksum)
      throw InputError(
          fmt::format("{}: its checksum is not the one in the manifest: damaged or changed", path));
  }
  const auto found = file->tensors().find(place.key.text());
  if (found == file->tensors().end())
    throw InputError(fmt::format("{}: tensor {} is missing", path, place.key.text()));
  return found->second;
}

}  // namespace rehearse
