#include "engine/base/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/errors.h"

namespace rehearse {

namespace fs = std::filesystem;

void write_file(const std::string& path, const std::string& text) {
  std::error_code error;
  const bool plain = fs::is_regular_file(path, error) || !fs::exists(path, error);
  const std::string beside = plain ? fmt::format("{}.{}.part", path, getpid()) : path;
  errno = 0;
  std::ofstream out(beside, std::ios::binary);
  out << text;
  out.close();
  const int cause = errno;
  if (!out) {
    if (plain) fs::remove(beside, error);
    throw BackendError(fmt::format("{}: cannot be written: {}", path, std::strerror(cause)));
  }
  if (!plain) return;  // /dev/stdout and the like
  fs::rename(beside, path, error);
  if (error) throw BackendError(fmt::format("{}: cannot be written: {}", path, error.message()));
}

std::string read_file(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in || (text.str().empty() && errno != 0))
    throw InputError(fmt::format("{}: cannot be read: {}", path,
                                 errno != 0 ? std::strerror(errno) : "input/output error"));
  return text.str();
}

}  // namespace rehearse
