// The data connections of a rank: makes the communicators and mailboxes of its channels. One
// listening socket a process; connections are made when two ranks first talk on a channel, one for
// each direction, and say who they are with the run's token.
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
  /// By rank: the node it lies on, for hierarchical algorithms. Empty: from host names.
  std::vector<Id> node_of = {};
  /// A mailbox holds at most this much on its way out, and as much on its way in.
  Bytes mailbox_bound = Bytes(2e9);
  /// How long no byte may move on a connection that is waited for while the control plane finds
  /// nobody to blame (a peer may compute for long). 0: ten times the control plane's timeout.
  Seconds patience = {};
};

class Network {
 public:
  /// Every rank makes one. The control plane must outlive it.
  explicit Network(Control& control, NetworkOptions options = {});
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// For a channel within one group: `ranks` in the group's order, this rank among them. For
  /// point-to-point channels give all ranks of the run. Name and ranks are the same at every
  /// member; a lane that shares a channel with another (one sends, one receives) may share the
  /// communicator, or make a second one under the same name. No communication happens here.
  std::unique_ptr<Communicator> communicator(const std::string& channel, std::vector<Id> ranks);
  /// For a mailbox channel; one per channel and process, on every rank that puts or takes.
  /// `senders`: the ranks that may put; `receivers`: those that take.
  std::unique_ptr<Mailbox> mailbox(const std::string& channel, std::vector<Id> senders,
                                   std::vector<Id> receivers);

  const std::vector<Id>& node_of() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::runtime
