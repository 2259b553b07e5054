#include "runtime/checkpoints/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::runtime {

CheckpointReader::CheckpointReader(const std::string& folder)
    : folder_(folder), manifest_(read_manifest(folder)), files_(manifest_.shards.size()) {
  for (std::size_t shard = 0; shard < manifest_.shards.size(); ++shard)
    for (const tensors::PartKey& key : manifest_.shards[shard].parts)
      places_[{key.kind, key.tensor}].push_back({key, shard});
}

std::int64_t CheckpointReader::own_step(Id rank) const {
  const auto& own = manifest_.own_steps;
  return rank < own.size() ? own[rank].value_or(manifest_.step) : manifest_.step;
}

std::vector<std::byte> CheckpointReader::whole(tensors::StorageKind kind, const std::string& tensor,
                                               int age, int copy, const model::TensorSpec* spec,
                                               program::DType dtype) {
  const auto found = places_.find({kind, tensor});
  if (found == places_.end()) return {};
  const int width = static_cast<int>(size_of(dtype));
  // Checks every part before it allocates the whole, because the manifest may say anything.
  std::vector<std::pair<tensors::PartKey, TensorEntry>> parts;
  std::int64_t elements = spec != nullptr ? tensors::elements_of(*spec) : 0, filled = 0;
  for (const Place& place : found->second) {
    if (place.key.age != age || place.key.copy != copy) continue;
    if (spec == nullptr && parts.empty()) elements = place.key.end;
    const TensorEntry entry = read(place);
    const std::int64_t count = place.key.end - place.key.begin;
    if (entry.dtype != dtype)
      throw InputError(fmt::format(
          "{}: {} {} was saved in another precision; go on with the precision it was saved in",
          path_of(place.shard), name_of(kind), tensor));
    if (entry.data.size() != static_cast<std::size_t>(count * width) ||
        place.key.end * place.key.tp_size > elements)
      throw InputError(fmt::format("{}: {} {} has another shape in this model",
                                   path_of(place.shard), name_of(kind), tensor));
    parts.emplace_back(place.key, entry);
    filled += count;
  }
  if (parts.empty()) return {};
  if (filled != elements)
    throw InputError(fmt::format("{}/{}: {} of {} elements of {} {} are missing", folder_,
                                 manifest_name, elements - filled, elements, name_of(kind),
                                 tensor));
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements * width));
  for (const auto& [key, entry] : parts) {
    auto* const data = const_cast<std::byte*>(entry.data.data());  // not written to
    if (spec != nullptr)
      copy_part(*spec, key.tp_size > 1, key.tp_rank, key.tp_size, key.begin, key.end, width,
                bytes.data(), data, tensors::Direction::to_whole);
    else
      std::memcpy(bytes.data() + key.begin * width, data, entry.data.size());
  }
  return bytes;
}

int CheckpointReader::copies(tensors::StorageKind kind, const std::string& tensor) const {
  const auto found = places_.find({kind, tensor});
  int count = 0;
  if (found != places_.end())
    for (const Place& place : found->second) count = std::max(count, place.key.copy + 1);
  return count;
}

program::DType CheckpointReader::dtype_of(tensors::StorageKind kind, const std::string& tensor) {
  const auto found = places_.find({kind, tensor});
  return found == places_.end() ? program::DType::f32 : read(found->second.front()).dtype;
}

std::string CheckpointReader::path_of(std::size_t shard) const {
  return (std::filesystem::path(folder_) / manifest_.shards[shard].file).string();
}

const SafetensorsFile& CheckpointReader::file_of(std::size_t shard) {
  std::unique_ptr<SafetensorsFile>& file = files_[shard];
  if (file == nullptr)
    file = std::make_unique<SafetensorsFile>(path_of(shard), manifest_.shards[shard].sum);
  return *file;
}

TensorEntry CheckpointReader::read(const Place& place) {
  const TensorTable& tensors = file_of(place.shard).tensors();
  const auto found = tensors.find(place.key.text());
  if (found == tensors.end())
    throw InputError(
        fmt::format("{}: tensor {} is missing", path_of(place.shard), place.key.text()));
  return found->second;
}

}  // namespace rehearse::runtime
