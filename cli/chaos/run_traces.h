// What a real run has left behind: its metrics, its last checkpoint, the ranks that its messages
// blame, and processes that still run.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace rehearse::cli {

/// By step: each loss that metrics.jsonl holds for it. Incomplete lines do not count.
std::map<std::int64_t, std::vector<double>> losses_in(const std::string& out);
/// The number of lines of a file of JSON lines; 0: there is no such file.
std::size_t lines_in(const std::string& path);
/// The files of tensors of the checkpoint after so many steps, by name; empty: there is none.
std::map<std::string, std::string> state_in(const std::string& out, std::int64_t step);
/// Whether train.out holds a complete checkpoint.
bool has_checkpoint(const std::string& out);

/// The ranks that error messages name as those to blame.
std::set<int> blamed_in(const std::string& said);
/// The last message of an error in the output of a command; else the last line.
std::string last_error(const std::string& said);

/// The processes whose command line contains `text`.
std::vector<pid_t> processes_with(const std::string& text);
/// rank -> pid of the processes that `rehearse train --nproc` has started.
std::map<int, pid_t> ranks_of(pid_t launcher);

}  // namespace rehearse::cli
