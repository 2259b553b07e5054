// One run at a time writes in a folder train.out.
#pragma once
#include <string>

#include "runtime/control/net/socket.h"

namespace rehearse::runtime {

/// Keeps other runs from writing in the folder, until it is destroyed and all processes that were
/// forked meanwhile have ended: the system then drops the lock, however they end. Another machine's
/// run is kept out where the file system has flock over the network.
class FolderLock {
 public:
  /// Creates the folder. Waits some seconds for a run that is ending; throws InputError when it
  /// does not end. Locks nothing where the folder cannot be created: to write there fails too, with
  /// a reason.
  explicit FolderLock(const std::string& folder);

 private:
  Fd folder_;
};

}  // namespace rehearse::runtime
