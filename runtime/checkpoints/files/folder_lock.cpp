#include "runtime/checkpoints/files/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "engine/base/errors.h"

namespace rehearse::runtime {

FolderLock::FolderLock(const std::string& folder) {
  constexpr int tries = 50;
  constexpr std::chrono::milliseconds pause(100);
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  folder_ = Fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; folder_ && ::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK) return;  // a file system without locks
    if (i == tries)
      throw InputError(
          fmt::format("train.out = \"{}\": another run is writing there; end it, or give this one "
                      "another folder (--set train.out=FOLDER)",
                      folder));
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace rehearse::runtime
