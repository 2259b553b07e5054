#include "runtime/checkpoints/files/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <list>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "runtime/checkpoints/files/increment.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/kernels/floats.h"

namespace rehearse::runtime {

CheckpointReader::CheckpointReader(const std::string& folder, std::function<void()> alive)
    : CheckpointReader(folder, read_manifest(folder), std::move(alive)) {
  if (manifest_.base) open_base();
}

CheckpointReader::CheckpointReader(const std::string& folder, Manifest manifest,
                                   std::function<void()> alive)
    : folder_(folder),
      manifest_(std::move(manifest)),
      alive_(std::move(alive)),
      files_(manifest_.shards.size()) {
  for (std::size_t shard = 0; shard < manifest_.shards.size(); ++shard)
    for (const tensors::PartKey& key : manifest_.shards[shard].parts)
      places_[{key.kind, key.tensor}].push_back({key, shard});
}

template <class F>
auto CheckpointReader::of_base(F read) {
  try {
    return read();
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("{}/{}: it has what changed since step {}, which cannot be read: {}", folder_,
                    manifest_name, manifest_.base->step, error.what()));
  }
}

void CheckpointReader::open_base() {
  std::filesystem::path here = std::filesystem::path(folder_).lexically_normal();
  if (!here.has_filename()) here = here.parent_path();
  const std::string beside = here.has_parent_path() ? here.parent_path().string() : ".";
  const std::string path = checkpoint_path(beside, manifest_.base->step);
  of_base([&] {
    Manifest found = read_manifest(path);
    const auto refuse = [&](const char* why) {
      throw InputError(fmt::format("{}/{}: {}", path, manifest_name, why));
    };
    if (found.checksum != manifest_.base->checksum)
      refuse("it is not the checkpoint that was there: its checksum is another one");
    if (found.base) refuse("it is no whole checkpoint");
    if (!std::ranges::equal(found.shards, manifest_.shards,
                            [](const ShardRecord& one, const ShardRecord& other) {
                              return one.file == other.file && one.parts == other.parts;
                            }))
      refuse("it has other parts");
    base_.reset(new CheckpointReader(path, std::move(found), alive_));
  });
}

void CheckpointReader::verify(std::size_t shard) {
  file_of(shard);
  if (base_ != nullptr) of_base([&] { base_->file_of(shard); });
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
  std::list<std::vector<std::byte>> changed;
  std::int64_t elements = spec != nullptr ? tensors::elements_of(*spec) : 0, filled = 0;
  for (const Place& place : found->second) {
    if (place.key.age != age || place.key.copy != copy) continue;
    if (spec == nullptr && parts.empty()) elements = place.key.end;
    const TensorEntry entry = read(place, changed.emplace_back());
    const std::int64_t count = place.key.end - place.key.begin;
    if (entry.dtype != dtype)
      throw InputError(fmt::format(
          "{}: {} {} was saved in {}, and this run keeps it in {}; go on with the precision it was "
          "saved in",
          path_of(place.shard), name_of(kind), tensor, name_of(entry.dtype), name_of(dtype)));
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

std::vector<std::byte> CheckpointReader::mean(tensors::StorageKind kind, const std::string& tensor,
                                              int age, const model::TensorSpec* spec,
                                              program::DType dtype) {
  const int count = copies(kind, tensor);
  std::vector<std::byte> out = whole(kind, tensor, age, 0, spec, dtype);
  if (count < 2 || out.empty()) return out;
  const auto elements = static_cast<std::int64_t>(out.size()) / size_of(dtype);
  std::vector<float> sum(static_cast<std::size_t>(elements));
  std::array<float, float_block> block = {};
  for (int copy = 0; copy < count; ++copy) {
    const std::vector<std::byte> one = whole(kind, tensor, age, copy, spec, dtype);
    for (std::int64_t begin = 0; begin < elements; begin += float_block) {
      const std::int64_t n = std::min(float_block, elements - begin);
      const float* values = as_f32(one.data(), dtype, begin, n, block.data());
      for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(begin + i)] += values[i];
    }
  }
  for (float& value : sum) value /= static_cast<float>(count);
  if (dtype == program::DType::f32)
    std::memcpy(out.data(), sum.data(), out.size());
  else
    store_f32(sum.data(), elements, out.data(), dtype, 0);
  return out;
}

bool CheckpointReader::has(tensors::StorageKind kind) const {
  const auto first = places_.lower_bound({kind, ""});
  return first != places_.end() && first->first.first == kind;
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
  std::vector<std::byte> changed;
  return found == places_.end() ? program::DType::f32 : read(found->second.front(), changed).dtype;
}

std::string CheckpointReader::path_of(std::size_t shard) const {
  return (std::filesystem::path(folder_) / manifest_.shards[shard].file).string();
}

const SafetensorsFile& CheckpointReader::file_of(std::size_t shard) {
  std::unique_ptr<SafetensorsFile>& file = files_[shard];
  if (file == nullptr)
    file = std::make_unique<SafetensorsFile>(path_of(shard), manifest_.shards[shard].sum, alive_);
  return *file;
}

TensorEntry CheckpointReader::read(const Place& place, std::vector<std::byte>& changed) {
  if (alive_) alive_();
  if (base_ == nullptr) return entry_of(place);
  TensorEntry entry = of_base([&] { return base_->entry_of(place); });
  changed = with_changes(place.key, entry, file_of(place.shard).tensors(), path_of(place.shard));
  entry.data = changed;
  return entry;
}

const TensorEntry& CheckpointReader::entry_of(const Place& place) {
  const TensorTable& tensors = file_of(place.shard).tensors();
  const auto found = tensors.find(place.key.text());
  if (found == tensors.end())
    throw InputError(
        fmt::format("{}: tensor {} is missing", path_of(place.shard), place.key.text()));
  return found->second;
}

}  // namespace rehearse::runtime
