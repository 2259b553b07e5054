// Checkpoints that nodes keep themselves, on their disks or in their memory (a file system in
// memory, so that they survive processes):
//
//   FOLDER/                          checkpoint.folder
//     rehearse-0123456789abcdef/     the run, by a hash of train.out
//       node-0/step-00000040/        parts of the ranks on node 0; with peers, of others as well
//       node-1/step-00000040/        the same of node 1
//
// Each folder step-N has the manifest of the whole checkpoint. What a node lacks comes from others.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/checkpoints/files/run_folder.h"

namespace rehearse::runtime {

class NodeStore {
 public:
  /// Reads train.out, [checkpoint], the cluster and the placement of the job.
  explicit NodeStore(const job::Job& job);

  /// Whether the job's checkpoints go to nodes.
  bool used() const { return !root_.empty(); }
  const std::string& root() const { return root_; }
  std::string folder_of(Id rank) const;
  /// The lowest rank on the node of a rank: it makes folders and writes manifests.
  Id leader_of(Id rank) const;
  /// The ranks on other nodes that keep this rank's part as well: one on each other node of its
  /// group (checkpoint.group neighbouring nodes; a last node that is alone joins the group before
  /// it). Empty unless the kind is peer.
  std::vector<Id> peers_of(Id rank) const;
  /// The ranks whose parts this rank keeps.
  std::vector<Id> kept_by(Id rank) const;
  /// Nodes with ranks.
  int nodes() const { return static_cast<int>(ranks_on_.size()); }

 private:
  std::string root_ = {};
  int group_ = 1;
  std::vector<std::size_t> node_of_ = {};       // by rank; nodes with ranks are numbered from 0
  std::vector<std::vector<Id>> ranks_on_ = {};  // by node
  std::vector<Id> number_ = {};                 // of the node in the cluster
};

/// What is there of a checkpoint, as seen from one host.
struct HeldCheckpoint {
  std::int64_t step = 0;
  std::uint64_t identity = 0;                      // of its manifest
  std::map<std::string, std::int64_t> files = {};  // that the whole checkpoint has, and their bytes
  std::map<std::string, std::string> paths = {};   // of those that are here and undamaged
  std::vector<std::string> damaged = {};           // paths of others that are here
};

/// All checkpoints in the folders node-* of a store that this host can see.
std::vector<HeldCheckpoint> held_in(const std::string& root);
std::string to_json(const std::vector<HeldCheckpoint>& held);
/// Throws BackendError when the text is not what to_json wrote.
std::vector<HeldCheckpoint> held_from_json(const std::string& text);

/// The newest checkpoint whose files are all there if the hosts put theirs together; nothing: none.
struct NewestHeld {
  std::int64_t step = 0;
  std::uint64_t identity = 0;
};
/// `until`: what was saved after so many steps is not checked (checked_until) and does not count.
std::optional<NewestHeld> newest_of(const std::vector<std::vector<HeldCheckpoint>>& hosts,
                                    std::optional<std::int64_t> until = {});

/// The checkpoints after `step` that newest_of does not count, and why.
std::vector<PassedOver> passed_over(const std::vector<std::vector<HeldCheckpoint>>& hosts,
                                    std::int64_t step);

/// Removes what a run has in a node's folder after `step` steps (-1: everything).
void rewind_node(const std::string& folder, std::int64_t step);

}  // namespace rehearse::runtime
