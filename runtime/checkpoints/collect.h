// Brings a checkpoint that nodes keep in parts together on every node that runs ranks.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoints/files/node_store.h"
#include "runtime/communication/communicator.h"
#include "runtime/control/control.h"

namespace rehearse::runtime {

/// What the leaders of all nodes see, and the newest checkpoint among it.
struct HeldByAll {
  std::vector<std::vector<HeldCheckpoint>> of_rank = {};  // empty for ranks that lead no node
  std::optional<NewestHeld> newest = {};
};
/// Every rank calls it. `until`: that of rank 0 counts (see newest_of).
HeldByAll gather_held(const NodeStore& store, std::optional<std::int64_t> until, Control& control);

/// Puts every file of `held.newest` into the folder of every node: a copy of what the host sees,
/// else a transfer from the lowest leader that sees it. Every rank calls it; `between` has all
/// ranks. `lane` tells the others of each piece, so that it may take longer than any timeout.
/// Throws BackendError when a file cannot be written.
void collect(const NodeStore& store, const HeldByAll& held, Control& control, Communicator& between,
             LaneProgress& lane);

/// Sends a file of `bytes` to one member of a communicator, and receives one. They call `alive`
/// after each piece (file_piece). A file that cannot be read or written is moved to its end all the
/// same, so that the other member does not wait, and then throws BackendError.
void send_file(Communicator& between, const std::string& path, std::int64_t bytes, Id to,
               const std::function<void()>& alive);
void receive_file(Communicator& between, const std::string& path, std::int64_t bytes, Id from,
                  const std::function<void()>& alive);

}  // namespace rehearse::runtime
