// The data connections of a rank: makes the communicators and mailboxes of its channels. Each
// process has one listening socket. Two ranks connect when they first communicate on a channel,
// with one connection for each direction, and prove to each other that they belong to the run.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/job/job.h"
#include "runtime/communication/communicator.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

struct NetworkOptions {
  job::Transport transport = job::Transport::sockets;
  /// The node of each rank, for hierarchical algorithms. Empty: derived from host names.
  std::vector<Id> node_of = {};
  /// Bytes that a mailbox may hold unsent, and as many received but not taken. A single larger
  /// message still passes, and reading stops only once the bound is exceeded.
  Bytes mailbox_bound = Bytes(2e9);
  /// The longest time without a byte on a connection that is waited for, while the control plane
  /// blames nobody (a peer may compute for long). 0: ten times the control plane's timeout.
  Seconds patience = {};
};

class Network {
 public:
  /// Every rank makes one, at the same point of the program. `control` must outlive it. Throws
  /// InputError when node_of has another length than the world size.
  explicit Network(Control& control, NetworkOptions options = {});
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// For a channel within one group: `ranks` in the group's order, with this rank among them. For
  /// point-to-point channels give all ranks of the run. Name and ranks are the same at every
  /// member. Two lanes on one channel (one sends, one receives) may share the communicator or make
  /// one each. Nothing is sent here. Throws ProgramError when this rank is not in `ranks`.
  std::unique_ptr<Communicator> communicator(const std::string& channel, std::vector<Id> ranks);
  /// For a mailbox channel: one per channel and process, on every rank that puts or takes.
  /// `senders` may put, `receivers` take.
  std::unique_ptr<Mailbox> mailbox(const std::string& channel, std::vector<Id> senders,
                                   std::vector<Id> receivers);

  /// The node of each rank.
  const std::vector<Id>& node_of() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
