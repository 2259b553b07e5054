#include "cli/commands/sweep/sweep_on.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "cli/batch/batch_system.h"
#include "cli/batch/system_command.h"
#include "cli/chaos/interruption.h"
#include "cli/console/spawn.h"
#include "engine/base/errors.h"
#include "engine/base/files/files.h"

namespace rehearse::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Duration = std::chrono::duration<double>;

constexpr int rounds = 3;                      // of submission
constexpr int most_shards = 64;                // unless the user wants more
constexpr int patience = 30;                   // questions in a row without an answer
constexpr double shortest = 0.1, longest = 5;  // seconds between two questions

/// How many lines the files of results have, read only where they have grown.
class LineCount {
 public:
  explicit LineCount(std::string folder) : folder_(std::move(folder)) { update(); }
  /// Returns how many have come since this object was made.
  std::size_t update() {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder_, none)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("results") || entry.path().extension() != ".jsonl") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      std::streamoff& read = read_[name];
      in.seekg(read);
      const std::string more{std::istreambuf_iterator<char>(in), {}};
      read += static_cast<std::streamoff>(more.size());
      lines_ += static_cast<std::size_t>(std::count(more.begin(), more.end(), '\n'));
    }
    if (!lines_at_start_) lines_at_start_ = lines_;
    return lines_ - *lines_at_start_;
  }

 private:
  std::string folder_;
  std::map<std::string, std::streamoff> read_ = {};
  std::size_t lines_ = 0;
  std::optional<std::size_t> lines_at_start_ = {};
};

/// How a wait has ended: by the job's end, by a signal, or because the time was over.
enum class End { job, signal, time };

class RunOn {
 public:
  RunOn(const Context& context, const SweepOn& how, const std::vector<study::Point>& points,
        Teller& teller, study::Rows& rows)
      : context_(context),
        how_(how),
        points_(points),
        teller_(teller),
        rows_(rows),
        system_(batch_system(how.system)),
        logs_((fs::absolute(how.folder) / "logs").string()) {}

  int run() {
    const std::size_t lacking = lacks().size();
    if (lacking == 0) return good;
    system_->check();
    make_folders();
    shards_ = how_.shards > 0 ? how_.shards
                              : static_cast<int>(std::min<std::size_t>(lacking, most_shards));
    const Interruption interruption;
    for (int round = 0; round < rounds && !lacks().empty(); ++round)
      if (const int status = submit_and_wait(); status != good) return status;
    const auto lost = lacks();
    if (lost.empty()) return good;
    teller_.done();
    fmt::print(stderr, "rehearse: {}\n", complaint(lost));
    return failed;
  }

 private:
  /// One for each key.
  std::vector<const study::Point*> lacks() const {
    std::vector<const study::Point*> out;
    std::set<std::string> keys;
    for (const study::Point& point : points_) {
      const auto row = rows_.find(point.key);
      const bool known = row != rows_.end() && row->second.failed.empty();
      if (!known && keys.insert(point.key).second) out.push_back(&point);
    }
    return out;
  }

  void make_folders() const {
    std::error_code error;
    fs::create_directories(logs_, error);
    if (error)
      throw InputError(fmt::format("-o {}: cannot be created: {}", how_.folder, error.message()));
  }

  std::string command() const {
    std::string out = "exec " + quoted(fs::read_symlink("/proc/self/exe").string()) + " sweep " +
                      quoted(how_.file) + " -o " + quoted(fs::absolute(how_.folder).string()) +
                      fmt::format(" --quiet --jobs {} --shard $task/{}", cores(), shards_);
    for (const std::string& one : context_.set) out += " --set " + quoted(one);
    return out;
  }
  int cores() const { return std::max(how_.jobs, 1); }

  int submit_and_wait() {
    std::set<int> tasks;
    for (const study::Point* point : lacks()) tasks.insert(study::shard_of(*point, shards_));
    const std::string job = system_->submit({.tasks = {tasks.begin(), tasks.end()},
                                             .command = command(),
                                             .logs = logs_,
                                             .cores = cores(),
                                             .more = how_.arguments});
    End end = End::job;
    try {
      end = wait_for(job);
      if (end != End::job) system_->cancel(job);
    } catch (const BackendError& error) {
      throw BackendError(fmt::format("{}; job {} of {} may still run. {}", error.what(), job,
                                     how_.system, kept()));
    }
    rows_ = study::read_rows(how_.folder);
    if (end == End::time)
      throw BackendError(
          fmt::format("--wait is over: job {} of {} was cancelled. {}", job, how_.system, kept()));
    if (end != End::signal) return good;
    teller_.done();
    fmt::print(stderr, "rehearse: interrupted: job {} of {} was cancelled. {}\n", job, how_.system,
               kept());
    return 128 + Interruption::signal();
  }

  std::string kept() const {
    return fmt::format("{} keeps the results so far, and the same command goes on", how_.folder);
  }

  End wait_for(const std::string& job) {
    const std::size_t lacking = lacks().size();
    LineCount lines(how_.folder);
    int silent = 0;
    for (double pause = shortest;; pause = std::min(longest, pause * 1.3)) {
      if (Interruption::signal() != 0) return End::signal;
      if (how_.wait.value > 0 && Duration(Clock::now() - begin_).count() > how_.wait.value)
        return End::time;
      try {
        const TaskCounts tasks = system_->tasks(job);
        silent = 0;
        if (tasks.waiting + tasks.running == 0) return End::job;
        teller_.say(fmt::format("{} of {} points; job {} of {}: {} tasks run, {} wait",
                                std::min(lines.update(), lacking), lacking, job, how_.system,
                                tasks.running, tasks.waiting));
      } catch (const BackendError&) {  // a server that is busy or begins again
        if (++silent == patience) throw;
      }
      const auto next = Clock::now() + Duration(pause);
      while (Clock::now() < next && Interruption::signal() == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  /// What is known of a point without a result.
  std::string reason(const study::Point& point) const {
    const int shard = study::shard_of(point, shards_);
    const std::string log = fmt::format("{}/{}.log", logs_, shard);
    const auto row = rows_.find(point.key);
    std::string why;
    if (row != rows_.end()) why = row->second.failed;
    if (why.empty() && fs::exists(log)) why = last_line(read_file(log));
    if (!fs::exists(log))
      return fmt::format("shard {}/{} has no log {}; do all machines share this folder?", shard,
                         shards_, log);
    return fmt::format("shard {}/{}, log {}: {}", shard, shards_, log, why);
  }

  std::string complaint(const std::vector<const study::Point*>& lost) const {
    constexpr std::size_t most = 5;
    std::string out = fmt::format("{} points have no result after {} jobs of {}:", lost.size(),
                                  rounds, how_.system);
    for (std::size_t i = 0; i < std::min(most, lost.size()); ++i)
      out += fmt::format("\n  {}: {}", lost[i]->values.dump(), reason(*lost[i]));
    if (lost.size() > most) out += fmt::format("\n  and {} other points", lost.size() - most);
    return out + "\n" + kept();
  }

  const Context& context_;
  const SweepOn& how_;
  const std::vector<study::Point>& points_;
  Teller& teller_;
  study::Rows& rows_;
  std::unique_ptr<BatchSystem> system_;
  std::string logs_;
  int shards_ = 1;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

int compute_on(const Context& context, const SweepOn& how, const std::vector<study::Point>& points,
               Teller& teller, study::Rows& rows) {
  return RunOn(context, how, points, teller, rows).run();
}

}  // namespace rehearse::cli
