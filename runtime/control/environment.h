// Who this process is among the ranks of a run, read from the variables of whoever started it:
// torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; our own
// launcher sets the same ones), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID,
// SLURM_JOB_NODELIST) or Open MPI (OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK, ..._LOCAL_SIZE).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace rehearse::runtime {

struct Environment {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;  // 0: any (a single process needs none)
  std::string launcher = "none";  // torchrun, slurm, openmpi, rehearse, none
  int listener = -1;  // rank 0 under our launcher: an inherited socket that listens on master_port
  /// torchrun's agent already serves a c10d TCPStore on master_port, which rank 0 must not bind:
  /// the address of the control plane travels through that store.
  bool agent_store = false;
  std::string run_id = {};  // tells restarts of one torchrun job apart
};

using Variables = std::function<std::optional<std::string>(const std::string& name)>;
/// The variables of this process.
std::optional<std::string> process_variable(const std::string& name);

/// The environment of this rank; one process of its own when no launcher's variables are there.
/// MASTER_ADDR and MASTER_PORT override what Slurm and Open MPI would imply. Throws InputError that
/// names the variables when they contradict each other, are no numbers, are out of range, or when
/// one is missing.
Environment detect_environment(const Variables& variable = process_variable);

/// The first host of a Slurm node list: "node[003-010,12],login" -> "node003".
std::string first_host(const std::string& node_list);

}  // namespace rehearse::runtime
