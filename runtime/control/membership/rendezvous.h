// How the launchers of several nodes meet and agree on the starts of an elastic run: by files in a
// folder that all nodes share (`--nnodes MIN:MAX`). No launcher is special: each has a file with
// its state, which it rewrites again and again; of those that are alive, the one with the lowest
// name leads, and writes the next start when all of them have ended the last one. When it dies, the
// next one leads.
//
//   FOLDER/node-0184...-4711.json    a launcher: where it listens, how many ranks, its state
//   FOLDER/start-0003.json           which launchers have which ranks, and from which checkpoint
//   FOLDER/secret                    of the run, made by the first launcher (mode 600)
//   FOLDER/drain-0003                ranks of start 3 are to end after a step: others want to join
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "runtime/control/net/secret.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {

/// idle: waits for a start that has ranks for it. The others: of the start that it is or was in.
enum class NodeState : std::uint8_t { idle, running, done, failed, drained };
constexpr auto spellings(NodeState) {
  return std::to_array<const char*>({"idle", "running", "done", "failed", "drained"});
}

struct RendezvousNode {
  std::string name = {};  // in the order in which launchers came
  std::string host = {}, address = {};
  std::uint16_t port = 0;
  int nproc = 1;
  int start = 0;  // the last start that it was in
  NodeState state = NodeState::idle;
  int status = 0;               // exit status of its ranks in that start
  std::vector<int> died = {};   // ranks that a signal ended
  std::vector<int> stuck = {};  // ranks, here or elsewhere, that may not end by themselves
  std::uint64_t beat = 0;       // grows while it is alive
};

struct RendezvousStart {
  int number = 0, recoveries = 0;
  int ranks = 0;
  bool first = false;  // of the run
  bool over = false;   // the run has ended, with `status`
  int status = 0;
  /// By name, in the order of ranks; the first has rank 0.
  std::vector<std::pair<std::string, int>> ranks_of_node = {};
  std::string address = {};  // of rank 0's node
  std::uint16_t port = 0;
  std::string resume_from = {};
  std::vector<std::string> set = {};
};

class Rendezvous {
 public:
  /// Joins. `address`, `port`: where a rank 0 of this node would listen. `silence`: without a sign
  /// of life for so long, a launcher counts as dead. Throws BackendError when the folder cannot be
  /// written.
  Rendezvous(std::string folder, int nproc, std::string address, std::uint16_t port,
             Seconds silence);
  /// Leaves.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Shows that this launcher is alive, and looks who else is. Call it several times a second.
  void tick();
  void say(int start, NodeState state, int status = 0, std::vector<int> died = {},
           std::vector<int> stuck = {});

  const RendezvousNode& self() const { return self_; }
  /// Those alive, in order of their names.
  std::vector<RendezvousNode> alive() const;
  bool leads() const { return alive().front().name == self_.name; }

  /// The newest start, of this run or of an earlier one in the folder; number 0: none.
  RendezvousStart newest() const;
  /// Writes the next start. Does nothing if another launcher was quicker.
  void publish(const RendezvousStart& start) const;
  /// The run's secret. Throws as secret_in.
  Secret secret() const;
  void request_drain(int start) const;
  bool drain_requested(int start) const;

 private:
  struct Seen {
    RendezvousNode node = {};
    Deadline changed = {};
  };
  std::string path_of(const std::string& file) const;

  std::string folder_;
  Seconds silence_;
  RendezvousNode self_ = {};
  Deadline told_ = {};
  std::map<std::string, Seen> seen_ = {};  // by name
};

}  // namespace rehearse::runtime
