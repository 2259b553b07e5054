// Another program that runs beside this one and is watched. What it prints goes to a file. It dies
// with this process and with this object.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace rehearse::cli {

class Child {
 public:
  /// Starts a program; `said`: the file for its standard output and error, which is appended to.
  /// Throws BackendError when there is no process or no file.
  Child(const std::vector<std::string>& arguments, const std::string& said);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  /// The exit status once it has ended; 128 + n after signal n.
  std::optional<int> poll();
  /// The same, after at most so long.
  std::optional<int> wait(std::chrono::duration<double> patience);

 private:
  pid_t pid_ = -1;
  std::optional<int> status_ = {};
};

}  // namespace rehearse::cli
