#include "runtime/communication/ports.h"

#include "runtime/control/launch/environment.h"
#include "runtime/control/net/interfaces.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {

std::vector<OpenPort> ports_of(const job::Run& run) {
  const std::string free = "any free";
  const std::string here =
      address_for_other_hosts(run.interface, process_variable("MASTER_ADDR").value_or(""));
  std::vector<OpenPort> ports{{.what = "control",
                               .opened_by = "rank 0; with --nproc, the launcher",
                               .port = "any free; Slurm, Open MPI: MASTER_PORT",
                               .one_host = loopback,
                               .several_hosts = here},
                              {.what = "control of elastic runs",
                               .opened_by = "each launcher of --nnodes",
                               .port = free,
                               .several_hosts = address_for_other_hosts(run.interface)},
                              {.what = "data, mailboxes, checkpoints on nodes",
                               .opened_by = "each rank",
                               .port = free,
                               .one_host = loopback,
                               .several_hosts = here}};
  OpenPort& gloo = ports.emplace_back(
      OpenPort{.what = "Gloo", .opened_by = "each rank", .port = free, .proven = false});
  if (run.transport == job::Transport::gloo) {
    const auto stated = process_variable("GLOO_SOCKET_IFNAME");
    gloo.one_host = stated.value_or(loopback);
    gloo.several_hosts = stated.value_or(here);
  }
  ports.push_back(
      {.what = "NCCL", .opened_by = "no rank: train does not load it", .proven = false});
  // LibTorch's TCPStore has no other choice.
  ports.push_back({.what = "store of torchrun",
                   .opened_by = "torchrun",
                   .port = "MASTER_PORT",
                   .one_host = "all",
                   .several_hosts = "all",
                   .proven = false});
  for (OpenPort& port : ports) port.encrypted = port.proven && run.encrypt;
  return ports;
}

}  // namespace rehearse::runtime
