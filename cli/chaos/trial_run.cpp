#include "cli/chaos/trial_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <numeric>
#include <thread>

#include "cli/chaos/child.h"
#include "cli/chaos/interruption.h"
#include "cli/chaos/run_traces.h"
#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/faults/trace_file.h"

namespace rehearse::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double grace_s = 10;         // from a failure to the end of the last rank
constexpr double orphans_after_s = 5;  // after which a process should be gone
constexpr double first_limit_s = 300;  // of a reference, whose duration is not known yet
constexpr auto glance = std::chrono::milliseconds(5);

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string said_file(const std::string& folder) { return folder + "/said.txt"; }

/// Waits until nothing of the folder runs. True: something had to be killed.
bool sweep(const std::string& folder) {
  const auto begin = Clock::now();
  while (!processes_with(folder).empty()) {
    if (since(begin) > orphans_after_s) {
      for (const pid_t pid : processes_with(folder)) kill(pid, SIGKILL);
      return true;
    }
    std::this_thread::sleep_for(20 * glance);
  }
  return false;
}

/// `act`: called again and again while the run goes on, until it returns true.
Ended run_with(const Words& command, const std::string& folder, double limit_s,
               const std::function<bool(pid_t)>& act) {
  const auto begin = Clock::now();
  const std::size_t before =
      fs::exists(said_file(folder)) ? fs::file_size(said_file(folder)) : std::size_t{0};
  Ended out;
  {
    Child child(command, said_file(folder));
    bool done = act == nullptr;
    while (!child.poll() && since(begin) < limit_s && Interruption::signal() == 0) {
      if (!done) done = act(child.pid());
      std::this_thread::sleep_for(glance);
    }
    out.status = child.poll();
  }
  out.wall_s = since(begin);
  out.orphans = sweep(folder);
  out.said = read_file(said_file(folder)).substr(before);
  out.blamed = blamed_in(out.said);
  return out;
}

/// The mean of the last steps' losses: a tenth of them, at least five.
double last_loss(const std::string& out) {
  std::vector<double> losses;
  for (const auto& [step, all] : losses_in(out)) losses.push_back(all.back());
  const auto count =
      std::min<std::size_t>(losses.size(), std::max<std::size_t>(5, losses.size() / 10));
  if (count == 0) return 0;
  return std::accumulate(losses.end() - static_cast<std::ptrdiff_t>(count), losses.end(), 0.0) /
         static_cast<double>(count);
}

class Trial {
 public:
  Trial(Mishap kind, const Draws& draws, const TrialJob& subject, const Reference& reference,
        const std::string& folder)
      : kind_(kind),
        d_(draws),
        subject_(subject),
        reference_(reference),
        folder_(folder),
        limit_s_(time_limit(subject, reference)) {
    end_.out = folder + "/out";
  }

  TrialEnd run() {
    if (needs_network(kind_))
      on_nodes();
    else if (kind_ == Mishap::kill_launcher || kind_ == Mishap::segfault)
      from_outside();
    else if (kind_ == Mishap::disk_full && d_.real_disk)
      without_space();
    else
      by_trace();
    end_.recoveries = static_cast<int>(lines_in(end_.out + "/recoveries.jsonl"));
    return end_;
  }

 private:
  void by_trace() {
    const faults::Trace trace = trace_of(kind_, d_, subject_.shape);
    const std::string file = folder_ + "/faults.toml";
    write_file(file, to_toml(trace));
    Words more{"--faults", file};
    if (kind_ == Mishap::wrong_numbers && subject_.check_every > 0)
      more.insert(more.end(), {"--set", fmt::format("run.check_every={}", subject_.check_every)});
    end_.first = run_and_watch(train_command(subject_, end_.out, more), folder_, limit_s_);
    // Not every rank has a file in a checkpoint to damage: one of them, and the death.
    const std::size_t least_struck = std::min<std::size_t>(trace.events.size(), 2);
    end_.struck = lines_in(end_.out + "/faults.jsonl") >= least_struck;
  }

  /// A file system that a checkpoint fits on, but not two.
  void without_space() {
    const Words command = train_command(subject_, end_.out, {});
    end_.first = run_and_watch(
        on_small_disk(command, end_.out, reference_.checkpoint_bytes * 3 / 2), folder_, limit_s_);
    end_.struck = end_.first.status != 0;
  }

  void from_outside() {
    end_.struck = false;
    const auto strike = [&](pid_t launcher) {
      const auto steps = losses_in(end_.out);
      if (steps.empty() || steps.rbegin()->first < d_.step) return false;
      if (kind_ == Mishap::kill_launcher) {
        end_.struck = kill(launcher, SIGKILL) == 0;
      } else {
        const auto ranks = ranks_of(launcher);
        if (const auto rank = ranks.find(d_.rank); rank != ranks.end())
          end_.struck = kill(rank->second, SIGSEGV) == 0;
      }
      return true;
    };
    end_.first = run_with(train_command(subject_, end_.out, {}), folder_, limit_s_, strike);
    if (kind_ != Mishap::kill_launcher) return;
    end_.second = run_and_watch(train_command(subject_, end_.out, {go_on()}), folder_, limit_s_);
  }

  std::string go_on() const { return has_checkpoint(end_.out) ? "--resume" : "--overwrite"; }

  void on_nodes() {
    const std::string node = fmt::format("node{}", d_.rank);
    const double at = d_.share * reference_.steps_s;
    Words faults;
    switch (kind_) {
      case Mishap::link_down_up:
        faults = {"--down", fmt::format("{}@{:.3f}s..{:.3f}s", node, at,
                                        at + std::min(1.5, subject_.timeout_s / 3))};
        break;
      case Mishap::link_down:
        faults = {"--down", fmt::format("{}@{:.3f}s", node, at)};
        break;
      case Mishap::partition:
        faults = {"--partition", fmt::format("{}@{:.3f}s", node, at)};
        break;
      default:
        faults = {"--loss", fmt::format("{}={}%", node, kind_ == Mishap::loss_1 ? 1 : 5)};
    }
    end_.first =
        run_and_watch(on_network(subject_, folder_, end_.out, faults, {}), folder_, limit_s_);
    if (kind_ != Mishap::link_down && kind_ != Mishap::partition) return;
    end_.struck = end_.first.status != 0;
    if (end_.struck)
      end_.second =
          run_and_watch(on_network(subject_, folder_, end_.out, {}, {go_on()}), folder_, limit_s_);
  }

  const Mishap kind_;
  const Draws& d_;
  const TrialJob& subject_;
  const Reference& reference_;
  const std::string folder_;
  const double limit_s_;
  TrialEnd end_ = {};
};

}  // namespace

Ended run_and_watch(const Words& command, const std::string& folder, double limit_s) {
  return run_with(command, folder, limit_s, nullptr);
}

double time_limit(const TrialJob& subject, const Reference& reference) {
  return 30 + 5 * reference.wall_s +
         (subject.restarts + 1) * (2 * subject.timeout_s + grace_s + 2 * reference.wall_s);
}

Reference run_reference(const TrialJob& subject, const std::string& folder, bool network) {
  const std::string out = folder + "/out";
  const Words command =
      network ? on_network(subject, folder, out, {}, {}) : train_command(subject, out, {});
  std::optional<Clock::time_point> begun;
  Reference reference;
  const Ended ended = run_with(command, folder, first_limit_s, [&](pid_t) {
    const auto steps = losses_in(out);
    if (!begun && !steps.empty()) begun = Clock::now();
    if (begun) reference.steps_s = since(*begun);
    return !steps.empty() && steps.rbegin()->first >= subject.shape.steps;
  });
  if (Interruption::signal() != 0) return reference;
  if (ended.status != 0)
    throw InputError(fmt::format("the undisturbed run of {} {}: {}", subject.label,
                                 ended.status ? "failed" : "did not end", last_error(ended.said)));
  reference.state = state_in(out, subject.shape.steps);
  for (const auto& [name, bytes] : reference.state)
    reference.checkpoint_bytes += static_cast<std::int64_t>(bytes.size());
  reference.loss = last_loss(out);
  reference.wall_s = ended.wall_s;
  return reference;
}

TrialEnd run_trial(Mishap kind, const Draws& draws, const TrialJob& subject,
                   const Reference& reference, const std::string& folder) {
  return Trial(kind, draws, subject, reference, folder).run();
}

}  // namespace rehearse::cli
