// Output files: refused before the work when they cannot be written, complete or absent after it.
#pragma once
#include <string>

namespace rehearse::cli {

/// Throws InputError that names the flag and the cause when a file cannot be made at `path`.
void check_writable(const std::string& flag, const std::string& path);
/// Writes beside the name and renames. Throws BackendError; what stood there before stays then.
void write_file(const std::string& path, const std::string& text);
/// Throws InputError.
std::string read_file(const std::string& path);

/// A folder that goes away with the object, and what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace rehearse::cli
