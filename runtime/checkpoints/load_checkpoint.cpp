// Reads a checkpoint into the state of a rank.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/checkpoint.h"
#include "runtime/checkpoints/collect.h"
#include "runtime/checkpoints/files/checkpoint_reader.h"
#include "runtime/checkpoints/slowed.h"
#include "runtime/kernels/floats.h"

namespace rehearse::runtime {
namespace {

/// The whole tensor from which this rank's part is cut, as it was saved; empty when the checkpoint
/// has none.
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
  // What was each rank's own begins as the mean on another number of ranks.
  const bool means = key.kind != tensors::StorageKind::other && copies != copies_now;
  const auto read = [&](int age) {
    return means ? reader.mean(key.kind, key.tensor, age, spec, dtype)
                 : reader.whole(key.kind, key.tensor, age, key.copy, spec, dtype);
  };
  std::vector<std::byte> whole = read(key.age);
  // If the method keeps more versions than the checkpoint has, older versions start as the newest.
  if (whole.empty() && key.age > 1) whole = read(1);
  return whole;
}

/// The same in `dtype`. Weights that a server has in fp32 are rounded for a worker that only reads
/// them; `reads`: this rank does no more.
std::vector<std::byte> rounded_for(CheckpointReader& reader, const tensors::PartKey& key,
                                   const model::TensorSpec* spec, program::DType dtype,
                                   int copies_now, bool reads) {
  const bool rounds = reads && key.kind == tensors::StorageKind::param &&
                      dtype != program::DType::f32 &&
                      reader.dtype_of(key.kind, key.tensor) == program::DType::f32;
  if (!rounds) return tensor_for(reader, key, spec, dtype, copies_now);
  const auto whole = tensor_for(reader, key, spec, program::DType::f32, copies_now);
  const auto elements = static_cast<std::int64_t>(whole.size() / sizeof(float));
  std::vector<std::byte> out(static_cast<std::size_t>(elements * size_of(dtype)));
  store_f32(reinterpret_cast<const float*>(whole.data()), elements, out.data(), dtype, 0);
  return out;
}

/// Throws InputError when the moments are of another optimizer than the job's: SGD's momentum is
/// stored as AdamW's first moment is, but it is another quantity.
void check_optimizer(const CheckpointReader& reader, const std::string& path, plan::Optimizer now) {
  using tensors::StorageKind;
  if (!reader.has(StorageKind::moment1)) return;
  const auto saved =
      reader.has(StorageKind::moment2) ? plan::Optimizer::adamw : plan::Optimizer::sgd;
  if (saved == now) return;
  throw InputError(fmt::format(
      "{}: it was saved with train.optimizer = \"{}\", the job has \"{}\": go on with \"{}\", or "
      "leave its moments behind with --set 'recovery.without=[\"moments\"]'",
      path, name_of(saved), name_of(now), name_of(saved)));
}

/// Throws InputError when the job's tokens mean other text than the checkpoint's did: its weights
/// would learn both as one. Says so when only the text is another.
void check_data(const Manifest& manifest, const std::string& path, const ExecutorContext& c,
                const std::function<void(const std::string&)>& tell) {
  if (!manifest.data || *manifest.data == data_record(c.data)) return;
  const DataRecord& saved = *manifest.data;
  const std::string& now = c.data.tokenizer();
  if (!saved.tokenizer.empty() && !now.empty() && saved.tokenizer != now)
    throw InputError(fmt::format(
        "{}: the run had the tokenizer {:.12}..., train.data = \"{}\" is made with {:.12}... (both "
        "SHA-256), so tokens would mean other text: go on with data of the same tokenizer "
        "(data/prepare.py --tokenizer FILE)",
        path, saved.tokenizer, c.train.data, now));
  if (tell)
    tell(
        fmt::format("train.data = \"{}\" has other text than the run of {} had: samples from "
                    "step {} on come from it",
                    c.train.data, path, manifest.step + 1));
}

/// Throws InputError when the job's second moments would not have had as many updates as its
/// method.freeze says: their correction counts these. `without`: the moments are not read.
void check_freeze(const Manifest& manifest, const std::string& path, const plan::Plan& now,
                  bool without) {
  const std::int64_t freeze = now.exchange.quantised.freeze.value_or(0);
  if (freeze > 0 && without && freeze <= manifest.step)
    throw InputError(fmt::format(
        "{}: method.freeze: {}: without the moments of the checkpoint, second moments would stand "
        "still at 0; at least {}",
        path, freeze, manifest.step + 1));
  if (without || manifest.frozen_at == freeze) return;
  if (manifest.frozen_at > 0)
    throw InputError(fmt::format(
        "{}: its second moments stand still since step {}: go on with method \"{}\" and "
        "method.freeze = {}, or leave its moments behind with --set "
        "'recovery.without=[\"moments\"]'",
        path, manifest.frozen_at, manifest.method, manifest.frozen_at));
  if (freeze < manifest.step)
    throw InputError(fmt::format(
        "{}: method.freeze: {}: its second moments have changed until step {}; at least {}", path,
        freeze, manifest.step, manifest.step));
}

/// "residuals of error feedback" and the like: saved state that no rank of this program has.
std::vector<std::string> left_behind(const CheckpointReader& reader,
                                     const std::vector<tensors::RankMap>& maps) {
  using tensors::StorageKind;
  std::set<StorageKind> here;
  for (const tensors::RankMap& rank : maps)
    for (const tensors::StorageMap& storage : rank.storages) here.insert(storage.kind);
  std::vector<std::string> out;
  for (const auto& [kind, name] :
       {std::pair(StorageKind::residual, "residuals of error feedback"),
        std::pair(StorageKind::sum_residual, "residuals of the owners of sums"),
        std::pair(StorageKind::anchor, "weights of the last exchange"),
        std::pair(StorageKind::outer_moment, "momentum of the outer optimizer")})
    if (reader.has(kind) && !here.contains(kind)) out.emplace_back(name);
  return out;
}

}  // namespace

std::int64_t load_checkpoint(const std::string& checkpoint, const ExecutorContext& c,
                             Executor& executor, const LoadOptions& options) {
  const auto left = [&](job::LeftState what) {
    return std::ranges::find(options.without, what) != options.without.end();
  };
  CheckpointReader reader(checkpoint, options.alive);
  const Manifest& manifest = reader.manifest();
  const std::string path = (std::filesystem::path(checkpoint) / manifest_name).string();
  if (manifest.model != c.model.name)
    throw InputError(fmt::format("{}: the checkpoint is of model {}, the job's is {}", path,
                                 manifest.model, c.model.name));
  check_data(manifest, path, c, options.tell);
  const bool new_optimizer = left(job::LeftState::moments);
  if (!new_optimizer) check_optimizer(reader, path, c.plan.optimizer);
  check_freeze(manifest, path, c.plan, new_optimizer);
  if (const auto behind = left_behind(reader, executor.maps()); options.tell && !behind.empty())
    options.tell(fmt::format("{} has {}, of which method \"{}\" has none: the run goes on without",
                             checkpoint, fmt::join(behind, " and "), c.plan.method));
  // Files are checked in turn by all ranks, also those that no rank reads, so that damage is found
  // before the run goes on.
  const auto rank = static_cast<std::size_t>(c.control.environment().rank);
  const auto ranks = static_cast<std::size_t>(c.control.environment().world_size);
  slowed(
      options.slowdown,
      [&] {
        for (std::size_t shard = rank; shard < manifest.shards.size(); shard += ranks)
          reader.verify(shard);
      },
      options.alive);
  const std::int64_t step = manifest.step;
  // An optimizer without moments has made no update: its corrections count from here.
  executor.skipped_updates(new_optimizer ? step : manifest.skipped_updates);
  // With other workers, no rank has the samples that it had: each goes on with those of this step.
  const program::Program& now = c.linked.program;
  const bool same_ranks =
      manifest.world_size == now.world_size &&
      std::ranges::equal(manifest.mesh, now.mesh, {}, &program::Axis::size, &program::Axis::size);
  executor.own_step(same_ranks ? reader.own_step(static_cast<Id>(rank)) : step);
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
  program::DType last_type = program::DType::f32;
  for (const tensors::TensorPart& part : parts_of(c.linked, c.model, executor.maps(), c.rank)) {
    const program::DType dtype = executor.role().storages[part.storage].dtype;
    const auto spec = specs.find(part.key.tensor);
    const bool known = spec != specs.end();
    const bool moment = part.key.kind == tensors::StorageKind::moment1 ||
                        part.key.kind == tensors::StorageKind::moment2;
    const bool owed = part.key.kind == tensors::StorageKind::residual ||
                      part.key.kind == tensors::StorageKind::sum_residual;
    if ((moment && new_optimizer) || (owed && left(job::LeftState::residuals))) continue;
    tensors::PartKey whole = part.key;
    if (left(job::LeftState::versions)) whole.age = 1;
    whole.tp_rank = whole.begin = whole.end = 0;
    if (last.first != whole || last_type != dtype || last.second.empty()) {
      last_type = dtype;
      const int copies =
          known && part.key.kind == tensors::StorageKind::residual
              ? residual_place(c.linked, executor.maps(), c.rank, spec->second.group).count
              : tensors::place_of(c.linked.program,
                                  executor.maps()[c.rank].storages[part.storage].own, c.rank)
                    .count;
      slowed(
          options.slowdown,
          [&] {
            last = {whole,
                    rounded_for(reader, whole, known ? spec->second.tensor : nullptr, dtype, copies,
                                !executor.maps()[c.rank].storages[part.storage].updated)};
          },
          options.alive);
    }
    // Missing residuals and rank-local state keep their initial values: a layer that was sent whole
    // has no residual, and a rank that is new has no threshold of a select.
    if (last.second.empty() && (owed || part.key.kind == tensors::StorageKind::other)) continue;
    if (last.second.empty())
      throw InputError(
          fmt::format("{}: it has no {} of {}: it was saved with another optimizer, precision or "
                      "method",
                      path, name_of(part.key.kind), part.key.tensor));
    const std::int64_t width = size_of(dtype);
    executor.edit_state(part.storage, step, part.key.age, [&](std::span<std::byte> state) {
      std::byte* const target = state.data() + part.begin * width;
      if (known)
        copy_part(*spec->second.tensor, c.model.groups[spec->second.group].split, part.key.tp_rank,
                  part.key.tp_size, part.key.begin, part.key.end, static_cast<int>(width),
                  last.second.data(), target, tensors::Direction::to_part);
      else
        std::memcpy(target, last.second.data(),
                    std::min<std::size_t>(last.second.size(), part.key.end * width));
    });
  }
  return step;
}

}  // namespace rehearse::runtime
