#include "cli/console/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/errors.h"
#include "engine/base/files/files.h"

namespace rehearse::cli {

namespace fs = std::filesystem;

void check_writable(const std::string& flag, const std::string& path, bool updates) {
  if (!updates) will_write(flag, path);
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    throw InputError(fmt::format("{} {}: is a folder; name a file in it", flag, path));
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored))
    throw InputError(
        fmt::format("{} {}: the folder {} does not exist", flag, path, folder.string()));
  const bool was_there = fs::exists(path, ignored);
  errno = 0;
  std::ofstream out(path, std::ios::app);
  if (!out)
    throw InputError(fmt::format("{} {}: cannot be written: {}", flag, path, std::strerror(errno)));
  out.close();
  if (!was_there) fs::remove(path, ignored);
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "rehearse-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw BackendError(fmt::format("{}: cannot be made: {}", name, std::strerror(errno)));
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!kept_) fs::remove_all(path_, ignored);
}

}  // namespace rehearse::cli
