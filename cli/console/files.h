// Files that commands read and write. An output file is checked before the work. After the work the
// file is complete; when writing failed, the old file is unchanged.
#pragma once
#include <string>

namespace rehearse::cli {

/// Throws InputError with the flag and the cause when no file can be created at `path`.
void check_writable(const std::string& flag, const std::string& path);
/// Writes a temporary file beside `path` and renames it. Throws BackendError when that fails; then
/// the old file at `path` is unchanged. Devices such as /dev/stdout are written directly.
void write_file(const std::string& path, const std::string& text);
/// The contents of a file. Throws InputError when the file cannot be read.
std::string read_file(const std::string& path);

/// A new temporary folder. The destructor removes the folder and its contents, unless it is kept.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void keep() { kept_ = true; }

 private:
  std::string path_;
  bool kept_ = false;
};

}  // namespace rehearse::cli
