#include "runtime/checkpoints/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/checkpoint_reader.h"
#include "runtime/checkpoints/run_folder.h"
#include "runtime/checkpoints/safetensors.h"
#include "runtime/control/together.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kept_checkpoints = 2;

// The text by which a rank tells rank 0 the length and checksum of its file.
std::string text_of(const FileSum& sum) {
  return fmt::format("{} {:016x}", sum.bytes, sum.checksum);
}
FileSum sum_of(const std::string& text) {
  const std::size_t space = text.find(' ');
  return {.bytes = std::stoll(text), .checksum = std::stoull(text.substr(space), nullptr, 16)};
}

Manifest manifest_of(std::int64_t step, const ExecutorContext& c, const Executor& executor,
                     const std::vector<std::string>& sums, const PlanRecord& record,
                     const std::vector<std::string>& own_steps) {
  Manifest m{.step = step,
             .skipped_updates = executor.skipped_updates(),
             .own_steps = {},
             .method = c.plan.method,
             .model = c.model.name,
             .mesh = c.linked.program.mesh,
             .world_size = c.linked.program.world_size,
             .program_hash = c.linked.hash,
             .seed = c.train.seed,
             .global_batch = c.plan.schedule.global_batch,
             .seq_len = c.model.seq_len,
             .record = record,
             .shards = {}};
  for (const std::string& own : own_steps) {
    m.own_steps.emplace_back();
    if (!own.empty()) m.own_steps.back() = std::stoll(own);
  }
  const std::vector<std::vector<tensors::TensorPart>> owned =
      owned_parts(c.linked, c.model, executor.maps());
  for (Id rank = 0; rank < owned.size(); ++rank) {
    if (owned[rank].empty()) continue;
    ShardRecord shard{.file = shard_name(rank), .sum = sum_of(sums[c.wiring.process(rank)])};
    for (const tensors::TensorPart& part : owned[rank]) shard.parts.push_back(part.key);
    m.shards.push_back(std::move(shard));
  }
  return m;
}

/// The whole tensor from which this rank's part is cut; empty when the checkpoint has none.
std::vector<std::byte> tensor_for(CheckpointReader& reader, const tensors::PartKey& key,
                                  const model::TensorSpec* spec, program::DType dtype,
                                  int copies_now) {
  const int copies = reader.copies(key.kind, key.tensor);
  if (key.kind == tensors::StorageKind::residual && copies > 0 && copies != copies_now) {
    // With another number of data-parallel ranks, each gets an equal share of the sum of all
    // residuals.
    std::vector<std::byte> sum;
    for (int copy = 0; copy < copies; ++copy) {
      std::vector<std::byte> one = reader.whole(key.kind, key.tensor, key.age, copy, spec, dtype);
      if (sum.empty()) sum.resize(one.size());
      auto* to = reinterpret_cast<float*>(sum.data());
      const auto* from = reinterpret_cast<const float*>(one.data());
      for (std::size_t i = 0; i < one.size() / sizeof(float); ++i)
        to[i] += from[i] / static_cast<float>(copies_now);
    }
    return sum;
  }
  std::vector<std::byte> whole = reader.whole(key.kind, key.tensor, key.age, key.copy, spec, dtype);
  // If the method keeps more versions than the checkpoint has, older versions start as the newest.
  if (whole.empty() && key.age > 1)
    whole = reader.whole(key.kind, key.tensor, 1, key.copy, spec, dtype);
  return whole;
}

}  // namespace

void save_checkpoint(const std::string& folder, std::int64_t step, const ExecutorContext& c,
                     Executor& executor, const PlanRecord& record) {
  const fs::path final_path = fs::path(folder) / fmt::format("step-{:08}", step);
  const fs::path beside = final_path.string() + ".part";
  const std::string what = fmt::format("checkpoint {}", step);
  const bool leader = c.rank == 0;
  together(c.control, what + " folder", [&] {
    if (leader) {
      std::error_code error;
      fs::remove_all(beside, error);
      fs::create_directories(beside, error);
      if (error)
        throw BackendError(
            fmt::format("{}: cannot create it: {}", beside.string(), error.message()));
    }
  });
  std::string mine;
  try {
    together(c.control, what + " shard", [&] {
      const std::vector<std::vector<tensors::TensorPart>> owned =
          owned_parts(c.linked, c.model, executor.maps());
      TensorTable table;
      for (const tensors::TensorPart& part : owned[c.rank]) {
        const program::DType dtype = executor.role().storages[part.storage].dtype;
        const std::int64_t count = part.key.end - part.key.begin;
        table[part.key.text()] = {
            .dtype = dtype,
            .shape = {count},
            .data = executor.state(part.storage, step, part.key.age)
                        .subspan(part.begin * size_of(dtype), count * size_of(dtype))};
      }
      if (!table.empty())
        mine = text_of(write_safetensors((beside / shard_name(c.rank)).string(), table));
    });
    c.control.agree(what + " skipped updates", std::to_string(executor.skipped_updates()));
    const std::optional<std::int64_t> own = executor.own_step();
    const std::vector<std::string> own_steps =
        c.control.gather(what + " own steps", own ? std::to_string(*own) : std::string());
    const std::vector<std::string> sums = c.control.gather(what + " sums", mine);
    together(c.control, what + " manifest", [&] {
      if (!leader) return;
      write_durably((beside / manifest_name).string(),
                    to_text(manifest_of(step, c, executor, sums, record, own_steps)));
      sync_folder(beside.string());
      std::error_code error;
      fs::remove_all(final_path, error);
      fs::rename(beside, final_path, error);
      if (error)
        throw BackendError(fmt::format("{}: cannot rename: {}", beside.string(), error.message()));
      sync_folder(folder);
      std::vector<std::string> all = checkpoints_in(folder);
      while (all.size() > kept_checkpoints) {
        fs::remove_all(all.front(), error);
        all.erase(all.begin());
      }
    });
  } catch (...) {
    std::error_code ignored;
    if (leader) fs::remove_all(beside, ignored);
    throw;
  }
}

std::int64_t load_checkpoint(const std::string& checkpoint, const ExecutorContext& c,
                             Executor& executor) {
  CheckpointReader reader(checkpoint);
  const Manifest& manifest = reader.manifest();
  const std::string path = (fs::path(checkpoint) / manifest_name).string();
  if (manifest.model != c.model.name)
    throw InputError(fmt::format("{}: the checkpoint is of model {}, the job's is {}", path,
                                 manifest.model, c.model.name));
  // Files are checked in turn by all ranks, also those that no rank reads, so that damage is found
  // before the run goes on.
  const auto rank = static_cast<std::size_t>(c.control.environment().rank);
  const auto ranks = static_cast<std::size_t>(c.control.environment().world_size);
  for (std::size_t shard = rank; shard < manifest.shards.size(); shard += ranks)
    reader.verify(shard);
  const std::int64_t step = manifest.step;
  executor.skipped_updates(manifest.skipped_updates);
  executor.own_step(reader.own_step(static_cast<Id>(rank)));
  struct Known {
    const model::TensorSpec* tensor = nullptr;
    Id group = none;
  };
  std::map<std::string, Known> specs;
  for (Id group = 0; group < c.model.groups.size(); ++group)
    for (const model::TensorSpec& spec : c.model.groups[group].tensors)
      specs[spec.name] = {&spec, group};
  // The last tensor read: consecutive parts often belong to one tensor.
  std::pair<tensors::PartKey, std::vector<std::byte>> last;
  for (const tensors::TensorPart& part : parts_of(c.linked, c.model, executor.maps(), c.rank)) {
    const program::DType dtype = executor.role().storages[part.storage].dtype;
    const auto spec = specs.find(part.key.tensor);
    const bool known = spec != specs.end();
    tensors::PartKey whole = part.key;
    whole.tp_rank = whole.begin = whole.end = 0;
    if (last.first != whole || last.second.empty()) {
      const int copies =
          known && part.key.kind == tensors::StorageKind::residual
              ? residual_place(c.linked, executor.maps(), c.rank, spec->second.group).count
              : 0;
      last = {whole,
              tensor_for(reader, part.key, known ? spec->second.tensor : nullptr, dtype, copies)};
    }
    // Missing residuals and rank-local state keep their initial values: a layer that was sent whole
    // has no residual, and a rank that is new has no threshold of a select.
    if (last.second.empty() && (part.key.kind == tensors::StorageKind::residual ||
                                part.key.kind == tensors::StorageKind::other))
      continue;
    if (last.second.empty())
      throw InputError(
          fmt::format("{}: it has no {} of {}: it was saved with another optimizer, precision or "
                      "method",
                      path, name_of(part.key.kind), part.key.tensor));
    const std::int64_t width = size_of(dtype);
    std::byte* const target =
        executor.state(part.storage, step, part.key.age).data() + part.begin * width;
    if (known)
      copy_part(*spec->second.tensor, c.model.groups[spec->second.group].split, part.key.tp_rank,
                part.key.tp_size, part.key.begin, part.key.end, static_cast<int>(width),
                last.second.data(), target, tensors::Direction::to_part);
    else
      std::memcpy(target, last.second.data(),
                  std::min<std::size_t>(last.second.size(), part.key.end * width));
  }
  return step;
}

}  // namespace rehearse::runtime
