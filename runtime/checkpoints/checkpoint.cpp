#include "runtime/checkpoints/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "engine/base/errors.h"
#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/collect.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/checkpoints/files/safetensors.h"
#include "runtime/checkpoints/slowed.h"
#include "runtime/control/together.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;

// The text by which a rank tells rank 0 the length and checksum of its file.
std::string text_of(const FileSum& sum) {
  return fmt::format("{} {:016x}", sum.bytes, sum.checksum);
}
FileSum sum_of(const std::string& text) {
  const std::size_t space = text.find(' ');
  return {.bytes = std::stoll(text), .checksum = std::stoull(text.substr(space), nullptr, 16)};
}

// The text by which a rank tells the others what has changed of its parts.
std::string text_of(const Change& change) {
  return fmt::format("{} {} {:.17g} {:.17g}", change.bytes, change.changed_bytes, change.error,
                     change.relative_error);
}
Change change_of(const std::string& text) {
  Change change;
  std::istringstream in(text);
  in >> change.bytes >> change.changed_bytes >> change.error >> change.relative_error;
  return change;
}

/// What is written: the parts of all ranks, and this rank's bytes of each.
struct State {
  std::vector<std::vector<tensors::TensorPart>> parts = {};  // by rank
  std::function<HostBytes(const tensors::TensorPart&)> bytes = {};
  std::int64_t skipped_updates = 0;
  std::optional<std::int64_t> own_step = {};
};

Manifest manifest_of(std::int64_t step, const ExecutorContext& c, const State& state,
                     const std::vector<std::string>& sums, const PlanRecord& record,
                     const std::vector<std::string>& own_steps) {
  const std::int64_t freeze = c.plan.exchange.quantised.freeze.value_or(0);
  Manifest m{.step = step,
             .skipped_updates = state.skipped_updates,
             .frozen_at = freeze < step ? freeze : 0,
             .own_steps = {},
             .method = c.plan.method,
             .model = c.model.name,
             .mesh = c.linked.program.mesh,
             .world_size = c.linked.program.world_size,
             .program_hash = hash_of(c.linked.program),
             .seed = c.train.seed,
             .global_batch = c.plan.schedule.global_batch,
             .seq_len = c.model.seq_len,
             .record = record,
             .data = data_record(c.data),
             .shards = {}};
  for (const std::string& own : own_steps) {
    m.own_steps.emplace_back();
    if (!own.empty()) m.own_steps.back() = std::stoll(own);
  }
  for (Id rank = 0; rank < state.parts.size(); ++rank) {
    if (state.parts[rank].empty()) continue;
    ShardRecord shard{.file = shard_name(rank), .sum = sum_of(sums[c.wiring.process(rank)])};
    for (const tensors::TensorPart& part : state.parts[rank]) shard.parts.push_back(part.key);
    m.shards.push_back(std::move(shard));
  }
  return m;
}

/// Sends this rank's file to its peers and receives theirs. `sums`: by process.
void copy_to_peers(const SaveTarget& target, const fs::path& folder,
                   const std::vector<std::string>& sums, const ExecutorContext& c,
                   const std::function<void()>& alive) {
  const auto has_file = [&](Id rank) { return !sums[c.wiring.process(rank)].empty(); };
  const auto process = [&](Id rank) { return static_cast<Id>(c.wiring.process(rank)); };
  std::exception_ptr failed;
  std::thread sender([&] {
    try {
      for (const Id rank : target.to)
        if (has_file(c.rank))
          send_file(*target.between, (folder / shard_name(c.rank)).string(),
                    sum_of(sums[process(c.rank)]).bytes, process(rank), alive);
    } catch (...) {
      failed = std::current_exception();
    }
  });
  try {
    for (const Id rank : target.from)
      if (has_file(rank))
        receive_file(*target.between, (folder / shard_name(rank)).string(),
                     sum_of(sums[process(rank)]).bytes, process(rank), alive);
  } catch (...) {
    sender.join();
    throw;
  }
  sender.join();
  if (failed) std::rethrow_exception(failed);
}

BaseRecord base_record(const IncrementBase& base, int bits,
                       const std::vector<std::string>& changes) {
  Change all;
  for (const std::string& one : changes) all.add(change_of(one));
  return {.step = base.step,
          .checksum = base.checksum,
          .bits = bits,
          .changed = static_cast<double>(all.changed_bytes) / static_cast<double>(all.bytes),
          .error = all.error,
          .relative_error = all.relative_error};
}

/// Whether what is written is an increment: every rank's base is there, and so is the checkpoint
/// itself.
bool is_increment(const SaveTarget& target, std::int64_t step, const ExecutorContext& c) {
  if (target.base == nullptr || target.base->step < 0 || target.base->step >= step) return false;
  const fs::path base = checkpoint_path(target.folder, target.base->step);
  const std::vector<std::string> seen =
      c.control.gather(fmt::format("base of checkpoint {}", step),
                       !target.leads || fs::exists(base / manifest_name) ? "there" : "missing",
                       target.lane != nullptr ? until_verdict : Seconds(0));
  return std::ranges::count(seen, "missing") == 0;
}

/// Writes a checkpoint. Every rank calls it.
SavedCheckpoint write_all(const SaveTarget& target, std::int64_t step, const ExecutorContext& c,
                          const program::Role& role, const State& state, const PlanRecord& record) {
  const std::string& folder = target.folder;
  const fs::path final_path = checkpoint_path(folder, step);
  const fs::path beside = final_path.string() + ".part";
  const std::string what = fmt::format("checkpoint {}", step);
  const bool leader = target.leads;
  const auto alive = [&] {
    if (target.lane != nullptr) target.lane->pulse();
  };
  // All ranks call it: runs `work`, and fails on all if it fails on one.
  const auto on_all = [&](const char* part, const std::function<void()>& work) {
    together(c.control, fmt::format("{} {}", what, part), work, target.lane);
  };
  const bool increment = is_increment(target, step, c);
  if (target.base != nullptr && !increment) *target.base = {};
  SavedCheckpoint saved;
  on_all("folder", [&] {
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
  Change changed;
  try {
    on_all("shard", [&] {
      TensorTable table;
      std::list<std::vector<std::byte>> kept;
      std::list<HostBytes> read;
      for (const tensors::TensorPart& part : state.parts[c.rank]) {
        alive();
        const program::DType dtype = role.storages[part.storage].dtype;
        const std::int64_t count = part.key.end - part.key.begin;
        const std::span<const std::byte> bytes =
            read.emplace_back(state.bytes(part))
                .bytes.subspan(part.begin * size_of(dtype), count * size_of(dtype));
        if (increment) {
          changed.add(add_changes(part.key, dtype, bytes, target.base->parts.at(part.key),
                                  target.bits, table, kept));
          continue;
        }
        table[part.key.text()] = {.dtype = dtype, .shape = {count}, .data = bytes};
        if (target.base != nullptr) target.base->keep(part.key, dtype, bytes, target.bits);
      }
      if (state.parts[c.rank].empty()) return;
      slowed(
          target.slowdown,
          [&] {
            const std::string path = (beside / shard_name(c.rank)).string();
            mine = text_of(write_safetensors(path, table, {}, alive));
          },
          alive);
    });
    c.control.agree(what + " skipped updates", std::to_string(state.skipped_updates));
    const std::optional<std::int64_t> own = state.own_step;
    const std::vector<std::string> own_steps =
        c.control.gather(what + " own steps", own ? std::to_string(*own) : std::string());
    const std::vector<std::string> sums = c.control.gather(what + " sums", mine);
    for (const std::string& sum : sums)
      if (!sum.empty()) saved.bytes += sum_of(sum).bytes;
    if (increment)
      saved.base = base_record(*target.base, target.bits,
                               c.control.gather(what + " changes", text_of(changed)));
    if (target.between != nullptr)
      on_all("copies", [&] {
        if (target.lane != nullptr) target.lane->become(LaneState::communicating);
        copy_to_peers(target, beside, sums, c, alive);
      });
    on_all("manifest", [&] {
      if (!leader) return;
      Manifest manifest = manifest_of(step, c, state, sums, record, own_steps);
      manifest.base = saved.base;
      const std::string text = to_text(manifest);
      if (target.base != nullptr && !increment) target.base->checksum = checksum_in(text);
      slowed(
          target.slowdown,
          [&] {
            write_durably((beside / manifest_name).string(), text);
            sync_folder(beside.string());
          },
          alive);
      std::error_code error;
      fs::remove_all(final_path, error);
      fs::rename(beside, final_path, error);
      if (error)
        throw BackendError(fmt::format("{}: cannot rename: {}", beside.string(), error.message()));
      sync_folder(folder);
      keep_newest(folder);
    });
  } catch (...) {
    std::error_code ignored;
    if (leader) fs::remove_all(beside, ignored);
    throw;
  }
  if (target.base != nullptr && !increment) target.base->step = step;
  return saved;
}

/// The same, while the lane tells of it.
SavedCheckpoint write(const SaveTarget& target, std::int64_t step, const ExecutorContext& c,
                      const program::Role& role, const State& state, const PlanRecord& record) {
  LaneProgress* const lane = target.lane;
  if (lane == nullptr) return write_all(target, step, c, role, state, record);
  lane->enter(LaneState::communicating, step - 1, none);
  const std::shared_ptr<void> done(nullptr, [&](void*) { lane->become(LaneState::idle); });
  return write_all(target, step, c, role, state, record);
}

}  // namespace

DataRecord data_record(const Data& data) {
  return {.tokenizer = data.tokenizer(), .shards = data.shards_hash()};
}

SavedCheckpoint save_checkpoint(const std::string& folder, std::int64_t step,
                                const ExecutorContext& c, Executor& executor,
                                const PlanRecord& record) {
  return save_checkpoint(SaveTarget{.folder = folder, .leads = c.rank == 0}, step, c, executor,
                         record);
}

SavedCheckpoint save_checkpoint(const SaveTarget& target, std::int64_t step,
                                const ExecutorContext& c, Executor& executor,
                                const PlanRecord& record) {
  return write(target, step, c, executor.role(),
               {.parts = target.divides ? shared_parts(c.linked, c.model, executor.maps())
                                        : owned_parts(c.linked, c.model, executor.maps()),
                .bytes =
                    [&](const tensors::TensorPart& part) {
                      return executor.state(part.storage, step, part.key.age);
                    },
                .skipped_updates = executor.skipped_updates(),
                .own_step = executor.own_step()},
               record);
}

void save_snapshot(const SaveTarget& target, std::int64_t step, const ExecutorContext& c,
                   Executor& executor, std::int64_t skipped, const PlanRecord& record) {
  write(target, step, c, executor.role(),
        {.parts = snapshot_parts(c.linked, c.model, executor.maps()),
         .bytes =
             [&](const tensors::TensorPart& part) {
               return HostBytes{executor.snapshot(part.storage, part.key.age - 1)};
             },
         .skipped_updates = skipped},
        record);
}

}  // namespace rehearse::runtime
