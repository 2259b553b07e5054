#include "runtime/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/errors.h"
#include "engine/tensor_parts.h"
#include "runtime/checkpoint_reader.h"
#include "runtime/safetensors.h"

namespace rehearse {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kept_checkpoints = 2;

std::string shard_name(Id rank) { return fmt::format("rank-{:05}.safetensors", rank); }

json to_json(const PartKey& key) {
  return {{"kind", kind_name(key.kind)}, {"age", key.age},
          {"tensor", key.tensor},        {"copy", key.copy},
          {"tp_rank", key.tp_rank},      {"tp_size", key.tp_size},
          {"begin", key.begin},          {"end", key.end}};
}
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().starts_with("step-") && entry.path().extension().empty() &&
        fs::exists(entry.path() / "manifest.json"))
      found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

/// Runs `work` on this rank; when it failed on any rank, throws on all of them.
template <class F>
void together(Control& control, const std::string& what, F&& work) {
  std::string said = "ok";
  try {
    said += work();
  } catch (const std::exception& error) {
    said = error.what();
  }
  const std::vector<std::string> all = control.gather(what, said);
  for (Id other = 0; other < all.size(); ++other)
    if (!all[other].starts_with("ok"))
      throw BackendError(other == static_cast<Id>(control.environment().rank)
                             ? all[other]
                             : fmt::format("rank {}: {}", other, all[other]));
}

json manifest_of(std::int64_t step, const ExecutorContext& c, const Executor& executor,
                 const std::vector<std::string>& shards, const PlanRecord& record,
                 const std::vector<std::string>& own_steps) {
  json mesh = json::array();
  for (const Axis& axis : c.linked.program.mesh)
    mesh.push_back({{"name", axis.name}, {"size", axis.size}});
  json j = {{"format", "rehearse-checkpoint"},
            {"version", checkpoint_version},
            {"step", step},
            {"samples", step * c.plan.global_batch},
            {"skipped_updates", executor.skipped_updates()},
            {"method", c.plan.method},
            {"mesh", mesh},
            {"world_size", c.linked.program.world_size},
            {"program_hash", fmt::format("{:016x}", c.linked.hash)},
            {"model", c.model.name},
            {"seed", c.train.seed},
            {"global_batch", c.plan.global_batch},
            {"seq_len", c.model.seq_len},
            {"placements", record.placements},
            {"plan", record.plan},
            {"shards", json::array()}};
  // By rank; null where a rank is where the run is.
  for (const std::string& own : own_steps)
    j["own_steps"].push_back(own.empty() ? json() : json(std::stoll(own)));
  const std::vector<std::vector<Part>> owned = owned_parts(c.linked, c.model, executor.maps());
  for (Id rank = 0; rank < owned.size(); ++rank) {
    if (owned[rank].empty()) continue;
    json parts = json::array();
    for (const Part& part : owned[rank]) parts.push_back(to_json(part.key));
    j["shards"].push_back({{"file", shard_name(rank)},
                           {"checksum", shards[c.wiring.process(rank)].substr(2)},
                           {"parts", parts}});
  }
  return j;
}

/// What this rank is to have of a tensor, from whatever copies there are.
std::vector<std::byte> tensor_for(CheckpointReader& reader, const PartKey& key,
                                  const TensorSpec* spec, DType dtype, int copies_now) {
  const int copies = reader.copies(key.kind, key.tensor);
  if (key.kind == Kind::residual && copies > 0 && copies != copies_now) {
    // Another number of data-parallel ranks: what is still owed in all stays the same.
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
  // A method that keeps more versions than the one that saved: older ones begin as the newest.
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
    return "";
  });
  std::string mine;
  try {
    together(c.control, what + " shard", [&] {
      const std::vector<std::vector<Part>> owned = owned_parts(c.linked, c.model, executor.maps());
      TensorTable table;
      for (const Part& part : owned[c.rank]) {
        const DType dtype = executor.role().storages[part.storage].dtype;
        const std::int64_t count = part.key.end - part.key.begin;
        table[part.key.text()] = {
            .dtype = dtype,
            .shape = {count},
            .data = executor.state(part.storage, step, part.key.age)
                        .subspan(part.begin * size_of(dtype), count * size_of(dtype))};
      }
      if (!table.empty())
        mine = fmt::format("{:016x}",
                           write_safetensors((beside / shard_name(c.rank)).string(), table));
      return "";
    });
    c.control.agree(what + " skipped updates", std::to_string(executor.skipped_updates()));
    const std::optional<std::int64_t> own = executor.own_step();
    const std::vector<std::string> own_steps =
        c.control.gather(what + " own steps", own ? std::to_string(*own) : std::string());
    const std::vector<std::string> sums = c.control.gather(what + " sums", "ok" + mine);
    together(c.control, what + " manifest", [&] {
      if (!leader) return "";
      write_durably((beside / "manifest.json").string(),
                    manifest_of(step, c, executor, sums, record, own_steps).dump(1));
      sync_folder(beside.string());
      std::error_code error;
      fs::remove_all(final_path, error);
      fs::rename(beside, final_path, error);
      if (error)
        throw BackendError(fmt::format("{}: cannot rename: {}", beside.string(), error.message()));
      sync_folder(folder);
      std::vector<fs::path> all = checkpoints_in(folder);
      while (all.size() > kept_checkpoints) {
        fs::remove_all(all.front(), error);
        all.erase(all.begin());
      }
      return "";
    });
  } catch (...) {
    std::error_code ignored;
    if (leader) fs::remove_all(beside, ignored);
    throw;
  }
}

std::string find_checkpoint(const std::string& folder_or_checkpoint) {
  if (fs::exists(fs::path(folder_or_checkpoint) / "manifest.json")) return folder_or_checkpoint;
  const std::vector<fs::path> all = checkpoints_in(folder_or_checkpoint);
  if (all.empty())
    throw InputError(fmt::format("{}: no checkpoint there to resume from", folder_or_checkpoint));
  return all.back().string();
}

PlanRecord plan_record(const std::string& checkpoint) {
  return CheckpointReader(checkpoint).record();
}

std::int64_t load_checkpoint(const std::string& checkpoint, const ExecutorContext& c,
                             Executor& executor) {
  CheckpointReader reader(checkpoint);
  if (const std::string model = reader.model(); model != c.model.name)
    throw InputError(fmt::format("{}: the checkpoint is of model {}, the job's is {}", checkpoint,
                                 model, c.model.name));
  const std::int64_t step = reader.step();
  executor.skipped_updates(reader.skipped_updates());
  executor.own_step(reader.own_step(static_cast<Id>(c.control.environment().rank)));
  struct Known {
    const TensorSpec* tensor = nullptr;
    Id group = none;
  };
  std::map<std::string, Known> specs;
  for (Id group = 0; group < c.model.groups.size(); ++group)
    for (const TensorSpec& spec : c.model.groups[group].tensors) specs[spec.name] = {&spec, group};
  std::pair<PartKey, std::vector<std::byte>> last;  // consecutive parts are of one tensor
  for (const Part& part : parts_of(c.linked, c.model, executor.maps(), c.rank)) {
    const DType dtype = executor.role().storages[part.storage].dtype;
    const auto spec = specs.find(part.key.tensor);
    const bool known = spec != specs.end();
    PartKey whole = part.key;
    whole.tp_rank = whole.begin = whole.end = 0;
    if (last.first != whole || last.second.empty()) {
      const int copies =
          known && part.key.kind == Kind::residual
              ? residual_place(c.linked, executor.maps(), c.rank, spec->second.group).count
              : 0;
      last = {whole,
              tensor_for(reader, part.key, known ? spec->second.tensor : nullptr, dtype, copies)};
    }
    // Nothing was owed of a layer that was sent whole; a rank's own (a select's threshold) begins
    // anew on a rank that was not there.
    if (last.second.empty() && (part.key.kind == Kind::residual || part.key.kind == Kind::other))
      continue;
    if (last.second.empty())
      throw InputError(
          fmt::format("{}: it has no {} of {}: it was saved with another optimizer, precision or "
                      "method",
                      checkpoint, kind_name(part.key.kind), part.key.tensor));
    const std::int64_t width = size_of(dtype);
    std::byte* const target =
        executor.state(part.storage, step, part.key.age).data() + part.begin * width;
    if (known)
      copy_part(*spec->second.tensor, c.model.groups[spec->second.group].split, part.key.tp_rank,
                part.key.tp_size, part.key.begin, part.key.end, static_cast<int>(width),
                last.second.data(), target, Direction::to_part);
    else
      std::memcpy(target, last.second.data(),
                  std::min<std::size_t>(last.second.size(), part.key.end * width));
  }
  return step;
}

}  // namespace rehearse
