// The keys of a job file as they stand there, before anything is looked up: the first half of
// load_job, and the list that docs/job.md is tested against. Private to Job.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/base/config.h"
#include "engine/job/job.h"

namespace rehearse::job {

struct JobKeys {
  std::string model = {}, cluster = {}, profile = {}, plan_file = {};
  std::optional<std::int64_t> world_size = {};
  std::vector<std::string> devices = {};
  std::optional<Bytes> memory_reserve = {};
  plan::Plan plan = {};  // what does not depend on anything else
  std::optional<std::int64_t> pp = {}, dp = {}, tp = {}, servers = {}, micro_batches = {},
                              global_batch = {}, seq_len = {}, warmup_steps = {},
                              adaptive_warmup_steps = {};
  bool dp_of_shares = false;  // dp is as many as there are shares: nobody stated it
  Train train = {};
  Adaptive adaptive = {};
  Run run = {};
  cluster::Disturbance disturb = {};
};

/// Reads every key and refuses unknown ones.
JobKeys read_keys(const Config& file);

}  // namespace rehearse::job
