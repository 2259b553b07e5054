#include "runtime/control/launch/environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <vector>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

int to_number(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || text.empty()) {
    throw InputError(
        fmt::format("environment variable {}: \"{}\" is not a whole number", name, text));
  }
  if (value < least || value > most) {
    throw InputError(fmt::format("environment variable {}: {} is not between {} and {}", name,
                                 value, least, most));
  }
  return value;
}

/// The variables that hold the four numbers, by launcher.
struct Dialect {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};
constexpr Dialect torchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Dialect openmpi = {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Dialect slurm = {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                           "SLURM_NTASKS_PER_NODE"};

void read_ranks(const Dialect& dialect, const Variables& variable, Environment& out) {
  const auto rank = variable(dialect.rank);
  const auto world = variable(dialect.world_size);
  if (!rank || !world) {
    throw InputError(fmt::format(
        "environment variable {} is set but {} is not: {} sets both, a single process needs "
        "neither",
        rank ? dialect.rank : dialect.world_size, rank ? dialect.world_size : dialect.rank,
        dialect.launcher));
  }
  out.launcher = dialect.launcher;
  out.world_size = to_number(dialect.world_size, *world, 1, 1 << 20);
  out.rank = to_number(dialect.rank, *rank, 0, 1 << 20);
  if (out.rank >= out.world_size) {
    throw InputError(fmt::format("environment variable {}: rank {} does not exist, {} is {}",
                                 dialect.rank, out.rank, dialect.world_size, out.world_size));
  }
  if (const auto local = variable(dialect.local_rank)) {
    out.local_rank = to_number(dialect.local_rank, *local, 0, 1 << 16);
  }
  out.local_world_size = out.local_rank + 1;
  if (const auto size = variable(dialect.local_world_size)) {
    out.local_world_size = to_number(dialect.local_world_size, *size, 1, 1 << 16);
  } else if (&dialect == &slurm && variable("SLURM_STEP_NUM_NODES") == "1") {
    out.local_world_size = out.world_size;
  }
  if (out.local_rank >= out.local_world_size || out.local_world_size > out.world_size) {
    throw InputError(
        fmt::format("environment variables contradict each other: {} is {}, {} is {}, {} is {}",
                    dialect.local_rank, out.local_rank, dialect.local_world_size,
                    out.local_world_size, dialect.world_size, out.world_size));
  }
}

std::uint16_t default_port(const Dialect& dialect, const Variables& variable) {
  // A port from the job's id, so that two jobs on a node differ; below the ephemeral range.
  auto job = variable(&dialect == &slurm ? "SLURM_JOB_ID" : "OMPI_MCA_ess_base_jobid");
  if (!job) job = variable("PMIX_NAMESPACE");  // Open MPI 5
  unsigned hash = 0;
  for (const char c : job.value_or("")) hash = hash * 31 + static_cast<unsigned char>(c);
  return static_cast<std::uint16_t>(20000 + hash % 10000);
}

void read_master(const Dialect& dialect, const Variables& variable, Environment& out) {
  const auto address = variable("MASTER_ADDR");
  const auto port = variable("MASTER_PORT");
  // A Slurm step may run on some of the job's nodes.
  const auto step_nodes = variable("SLURM_STEP_NODELIST");
  const auto nodes = step_nodes ? step_nodes : variable("SLURM_JOB_NODELIST");
  if (port) {
    out.master_port = static_cast<std::uint16_t>(to_number("MASTER_PORT", *port, 1, 65535));
  } else if (&dialect == &torchrun) {
    if (out.world_size > 1) {
      throw InputError(
          "environment variable MASTER_PORT is missing: with RANK and WORLD_SIZE it says where "
          "rank 0 listens");
    }
  } else {
    out.master_port = default_port(dialect, variable);
  }
  if (address) {
    out.master_address = *address;
  } else if (nodes && &dialect == &slurm) {
    out.master_address = first_host(*nodes);
  } else if (out.local_world_size < out.world_size) {
    throw InputError(fmt::format(
        "environment variable MASTER_ADDR is missing: {} of {} ranks are on this machine, so the "
        "host of rank 0 must be named",
        out.local_world_size, out.world_size));
  }
}

}  // namespace

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

std::optional<Secret> secret_of(const Variables& variable) {
  const auto text = variable(secret_variable);
  if (!text) return std::nullopt;
  const auto secret = secret_from(*text);
  if (!secret)
    throw InputError(fmt::format(
        "environment variable {}: it must have 64 hexadecimal digits, as `openssl rand -hex 32` "
        "writes them, and has {} characters",
        secret_variable, text->size()));
  return secret;
}

std::string first_host(const std::string& node_list) {
  const auto open = node_list.find('[');
  const auto comma = node_list.find(',');
  if (open == std::string::npos || comma < open) return node_list.substr(0, comma);
  const auto close = node_list.find(']', open);
  const auto end = node_list.find_first_of(",-]", open);
  if (close == std::string::npos || end == open + 1) {
    throw InputError(fmt::format(
        "environment variable SLURM_JOB_NODELIST: \"{}\" is not a list of nodes", node_list));
  }
  const std::string head = node_list.substr(0, open) + node_list.substr(open + 1, end - open - 1);
  // What follows the bracket up to the next comma: "rack[1-2]node[03-04]".
  const std::string tail = node_list.substr(close + 1, node_list.find(',', close) - close - 1);
  return head + (tail.empty() ? "" : first_host(tail));
}

Environment detect_environment(const Variables& variable) {
  Environment out{.secret = secret_of(variable)};
  const auto has = [&](const Dialect& d) { return variable(d.rank) || variable(d.world_size); };
  const Dialect* dialect = nullptr;
  if (has(torchrun)) {
    dialect = &torchrun;
  } else if (has(openmpi)) {
    dialect = &openmpi;
  } else if (variable(slurm.rank)) {  // SLURM_NTASKS alone: a shell in an allocation
    dialect = &slurm;
  }
  if (dialect == nullptr && variable("PMIX_RANK")) {
    throw InputError(
        "environment variable PMIX_RANK is set, but none says how many ranks there are: start the "
        "ranks with Open MPI's mpirun or with srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT");
  }
  if (dialect == nullptr) return out;
  read_ranks(*dialect, variable, out);
  read_master(*dialect, variable, out);
  if (const auto listener = variable("REHEARSE_LISTENER")) {
    out.launcher = "rehearse";
    if (out.rank == 0) out.listener = to_number("REHEARSE_LISTENER", *listener, 0, 1 << 20);
  }
  out.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  out.run_id = variable("TORCHELASTIC_RUN_ID").value_or("") + "/" +
               variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return out;
}

}  // namespace rehearse::runtime
