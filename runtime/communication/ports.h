// The ports that a run opens, for `rehearse doctor`. Where they are opened: runtime/control
// (supervisor.h, local_ranks.h), switchboard.h and gloo_communicator.h.
#pragma once
#include <string>
#include <vector>

#include "engine/job/job.h"

namespace rehearse::runtime {

struct OpenPort {
  std::string what = {};  // that goes through it
  std::string opened_by = {};
  std::string port = {};  // its number, or what decides it
  /// The address or interface that it is opened on, in a run on one host and in a run on several;
  /// empty: it is not opened in such a run.
  std::string one_host = {}, several_hosts = {};
  /// Whether nothing but one frame is read before the other end has proven that it belongs to the
  /// run (runtime/control/net/door.h).
  bool proven = true;
  bool encrypted = false;  // everything after the proof
};

/// Those that a run with these settings would open if rank 0 were on this machine. Throws
/// InputError as address_for_other_hosts.
std::vector<OpenPort> ports_of(const job::Run& run);

}  // namespace rehearse::runtime
