// Output files of commands: checked before the work, written after it (engine/base/files/files.h);
// and temporary folders.
#pragma once
#include <string>

namespace rehearse::cli {

/// Throws InputError with the flag and the cause when no file can be created at `path`, or when
/// this command reads that file (will_write).
/// `updates`: what is written contains what was read.
void check_writable(const std::string& flag, const std::string& path, bool updates = false);
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
