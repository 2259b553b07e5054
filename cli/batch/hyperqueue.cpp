// HyperQueue (It4innovations/hyperqueue) through its program hq: a task array, whose tasks a server
// deals to workers. It runs the tasks of a lost worker again by itself.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/batch/batch_system.h"
#include "cli/batch/system_command.h"
#include "engine/base/errors.h"

namespace rehearse::cli {
namespace {

Finished hq(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{"hq", "--output-mode=json"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return call_system("hq", command,
                     "The program hq comes with HyperQueue's releases, which its documentation "
                     "names; PyPI's package hyperqueue is without it");
}

/// The JSON in what hq said; lines of its log may stand around it.
nlohmann::json json_in(const std::string& said) {
  for (std::size_t begin = said.find_first_of("[{"); begin != std::string::npos;
       begin = said.find_first_of("[{", begin + 1)) {
    const std::size_t end = said.find_last_of("]}");
    if (end == std::string::npos || end < begin) break;
    nlohmann::json out = nlohmann::json::parse(said.substr(begin, end + 1 - begin), nullptr, false);
    if (!out.is_discarded()) return out;
  }
  return {};
}

/// Why hq failed, on one line.
std::string complaint(const Finished& done) {
  const nlohmann::json json = json_in(done.output);
  if (!json.is_object() || !json.contains("error") || !json["error"].is_string())
    return last_line(done.output);
  const auto error = json["error"].get<std::string>();
  return error.substr(0, error.find('\n'));
}

/// A job's detail; versions before 0.10 print the object alone.
nlohmann::json detail(const std::string& job) {
  const Finished done = hq({"job", "info", job});
  nlohmann::json json = json_in(done.output);
  if (json.is_array() && !json.empty()) json = nlohmann::json(json[0]);
  if (done.status != 0 || !json.is_object() || !json.contains("info"))
    throw BackendError(fmt::format("hq job info {}: {}", job, complaint(done)));
  return json;
}

/// Workers have an environment of their own: what this program reads goes along.
void add_environment(std::vector<std::string>& command) {
  for (char** one = environ; *one != nullptr; ++one)
    if (std::string_view(*one).starts_with("REHEARSE_"))
      command.push_back(fmt::format("--env={}", *one));
}

class HyperQueue : public BatchSystem {
 public:
  void check() const override;
  std::string submit(const BatchJob& job) const override;
  TaskCounts tasks(const std::string& job) const override;
  void cancel(const std::string& job) const override;
};

void HyperQueue::check() const {
  const Finished done = hq({"server", "info"});
  if (done.status != 0)
    throw InputError(
        fmt::format("--on hq: no HyperQueue server answers ({}). Start one with `hq server start`, "
                    "and workers with `hq worker start` or `hq alloc add`",
                    complaint(done)));
}

std::string HyperQueue::submit(const BatchJob& job) const {
  std::vector<std::string> command{"submit",
                                   "--name=rehearse-sweep",
                                   "--array=" + ranges_of(job.tasks),
                                   fmt::format("--cpus={}", job.cores),
                                   "--cwd=" + std::filesystem::current_path().string(),
                                   "--stdout=none",
                                   "--stderr=none"};
  add_environment(command);
  command.insert(command.end(), job.more.begin(), job.more.end());
  // Both streams go to one file, which a task that is run again must not cut.
  const std::string text =
      fmt::format("task=$HQ_TASK_ID; exec >>{}/$task.log 2>&1; {}", quoted(job.logs), job.command);
  command.insert(command.end(), {"--", "/bin/sh", "-c", text});
  const Finished done = hq(command);
  const nlohmann::json json = json_in(done.output);
  if (done.status != 0 || !json.is_object() || !json.contains("id"))
    throw InputError(fmt::format("--on hq: hq submit refused: {}", complaint(done)));
  return json["id"].dump();
}

TaskCounts HyperQueue::tasks(const std::string& job) const {
  const nlohmann::json json = detail(job);
  const nlohmann::json& counts = json["info"].value("task_stats", nlohmann::json::object());
  if (!counts.contains("running") || !counts.contains("waiting"))
    throw BackendError(fmt::format("hq job info {}: has no counts of tasks", job));
  return {.waiting = counts["waiting"], .running = counts["running"]};
}

void HyperQueue::cancel(const std::string& job) const {
  const Finished done = hq({"job", "cancel", job});
  if (done.status != 0)
    throw BackendError(fmt::format("hq job cancel {}: {}", job, complaint(done)));
}

}  // namespace

std::unique_ptr<BatchSystem> hyperqueue() { return std::make_unique<HyperQueue>(); }

}  // namespace rehearse::cli
