// What the checkpoints that a program saves behind training cost: bytes, seconds, host memory.
// Their effect on the step time is in the step time itself.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/costs/costs.h"
#include "engine/execution/measure/metrics.h"
#include "engine/job/job.h"
#include "engine/link/link.h"

namespace rehearse::study {

struct Saving {
  int every = 0;  // steps between two checkpoints
  program::Medium to = program::Medium::shared_disk;
  std::int64_t bytes = 0;       // of a checkpoint, over all ranks
  std::int64_t most_bytes = 0;  // of the rank that saves most
  double snapshot_s = 0;        // the slowest rank's copies to host memory
  double write_s = 0;           // the slowest rank's write
  bool simulated = true;        // false: so rare that no simulated step contains one
};

/// Nothing when the program saves none.
std::optional<Saving> saving_of(const job::Job& job, const link::OrderedProgram& linked,
                                const costs::Costs& costs);

/// After how many steps the same ops work again (checkpoints, exchanges of weights); 1: all work in
/// every step. Ops so rare that no simulated step contains one do not count.
int repetition(const program::Program& program);
/// How rare the rarest collective is that does not count, in steps; 0: all count.
int rarest_left_out(const program::Program& program);
/// The steps to run, so that the steady ones contain whole repetitions.
execution::Steps whole_repetitions(execution::Steps steps, int repetition);

nlohmann::ordered_json to_json(const std::optional<Saving>& saving);
/// "every 10 steps 1.2 GB, at most 150 MB a rank: snapshot 12 ms, write to the shared disk 1.4 s".
std::string describe(const Saving& saving);

}  // namespace rehearse::study
