// Which rank this process is, read from the environment variables of the launcher: torchrun (RANK,
// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; our own launcher sets the
// same), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_JOB_NODELIST) or Open MPI
// (OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK, ..._LOCAL_SIZE). Open MPI 5 starts ranks through
// PMIx, which names the job (PMIX_NAMESPACE).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/control/net/secret.h"

namespace rehearse::runtime {

struct Environment {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;  // 0: any free port (enough for a single process)
  std::string launcher = "none";  // torchrun, slurm, openmpi, rehearse, none
  /// Rank 0 of our launcher: an inherited socket that listens on master_port; -1: none.
  int listener = -1;
  /// True if torchrun's agent serves a c10d TCPStore on master_port, so rank 0 cannot listen there.
  /// Rank 0 then tells its own port through that store.
  bool agent_store = false;
  std::string run_id = {};            // differs between restarts of a torchrun job
  std::optional<Secret> secret = {};  // of the run; nothing: the launcher has handed over none
  int start = 0;  // which start of a run whose launcher outlives failures; the first is 0
  std::int64_t began_at = -1;  // the first step of an earlier start; -1: not known

  bool one_host() const { return local_world_size == world_size; }
};

/// Looks up an environment variable; nothing when it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
/// The variables of this process.
std::optional<std::string> process_variable(const std::string& name);

/// The environment of this rank. Without a launcher's variables: a single process. MASTER_ADDR and
/// MASTER_PORT override what Slurm and Open MPI imply. Throws InputError that names the variables
/// when one is missing, is no number or is out of range, or when they contradict each other.
/// REHEARSE_SECRET is read under every launcher.
Environment detect_environment(const Variables& variable = process_variable);

/// The secret in REHEARSE_SECRET. Throws InputError, without the value, when that is malformed.
std::optional<Secret> secret_of(const Variables& variable = process_variable);

/// The first host of a Slurm node list: "node[003-010,12],login" -> "node003". Throws InputError
/// when the list is malformed.
std::string first_host(const std::string& node_list);

}  // namespace rehearse::runtime
