// The keys of a job file as the file states them, before models, clusters and methods are looked
// up. This is the first half of read_job. Internal to engine/job.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/cluster/platform/platform_changes.h"
#include "engine/job/job.h"
#include "engine/model/model_file.h"

namespace rehearse::job {

/// Optional members: none when the file leaves the key out and its default depends on other keys.
struct JobKeys {
  std::string model = {}, cluster = {}, profile = {}, plan_file = {};  // names or paths
  std::optional<std::int64_t> world_size = {};
  std::vector<std::string> devices = {};
  std::optional<Bytes> memory_reserve = {};
  cluster::PlatformChanges platform = {};
  model::ModelChanges model_changes = {};
  software::Software software = {};
  plan::Plan plan = {};  // only the fields that no other key determines
  std::optional<std::int64_t> pp = {}, dp = {}, cp = {}, tp = {}, servers = {}, micro_batch = {},
                              micro_batches = {}, global_batch = {}, seq_len = {},
                              warmup_steps = {}, adaptive_warmup_steps = {};
  bool autotune = false;
  bool dp_of_shares = false;  // dp was not stated: it is the number of shares
  Shares shares = Shares::equal;
  Train train = {};
  Adaptive adaptive = {};
  Run run = {};
  cluster::Disturbance disturb = {};
  Faults faults = {};
  Checkpoint checkpoint = {};
  Recovery recovery = {};
};

/// Reads every key. Throws InputError on unknown keys and on values of a wrong type or range.
JobKeys read_keys(const Config& file);
/// The model with the job's changes and length of sequences. An InputError names the key of the job
/// that states the wrong size, else one that changes the model, else model.name.
model::ModelSpec model_of(const Config& file, const JobKeys& keys);
/// For the error about a relative path that does not exist: the file that lies there as seen from
/// the job's folder. Empty: the path exists, or there is no such file.
std::string beside_job(const Config& file, const std::string& path);

}  // namespace rehearse::job
