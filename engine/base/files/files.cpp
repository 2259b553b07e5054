#include "engine/base/files/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "engine/base/errors.h"

namespace rehearse {

namespace fs = std::filesystem;

namespace {

/// What this process has read and what it will write, by canonical path.
struct Used {
  std::mutex lock = {};
  std::set<std::string> read = {};
  std::map<std::string, std::string> written = {};  // with the option that names it
};

Used& used() {
  static Used files;
  return files;
}

std::string canonical(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(path, error);
  return error ? path : found.string();
}

InputError replaced(const std::string& flag, const std::string& path) {
  return InputError(fmt::format(
      "{} {}: this command reads that file, and would replace it; name another one", flag, path));
}

}  // namespace

void will_write(const std::string& flag, const std::string& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) return;  // a terminal
  const std::string name = canonical(path);
  const std::lock_guard guard(used().lock);
  if (used().read.contains(name)) throw replaced(flag, path);
  const auto [known, added] = used().written.try_emplace(name, flag);
  if (!added && known->second != flag)
    throw InputError(fmt::format("{} {}: {} writes that file, too; name another one", flag, path,
                                 known->second));
}

void will_read(const std::string& path) {
  const std::string name = canonical(path);
  const std::lock_guard guard(used().lock);
  if (const auto it = used().written.find(name); it != used().written.end())
    throw replaced(it->second, path);
  used().read.insert(name);
}

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
  will_read(path);
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
