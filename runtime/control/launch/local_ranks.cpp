#include "runtime/control/launch/local_ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <limits>
#include <ranges>
#include <utility>

#include "engine/base/child.h"
#include "engine/base/errors.h"
#include "runtime/control/launch/stop_on_signal.h"
#include "runtime/control/net/interfaces.h"

namespace rehearse::runtime {
namespace {

constexpr int failed_status = 1;
constexpr std::size_t nobody = std::numeric_limits<std::size_t>::max();

}  // namespace

LocalRanks::LocalRanks(const RankWork& work, const LaunchOptions& options)
    : work_(work),
      options_(options),
      listener_(listen_on(0, options.elastic && options.elastic->most > 1
                                 ? address_for_other_hosts(options.elastic->interface)
                                 : loopback)),
      secret_(secret_of().value_or(random_secret())),
      ranks_(options.nproc) {}

RankProcess& LocalRanks::start(int rank, int ranks, bool stands_by) {
  return processes_.emplace_back(start_process({.work = work_,
                                                .rank = rank,
                                                .world_size = ranks,
                                                .listener = listener_.get(),
                                                .secret = secret_,
                                                .agent = static_cast<bool>(options_.recover),
                                                .stands_by = stands_by,
                                                .signals = signals_.previous_mask()}));
}

void LocalRanks::start_all() {
  for (int rank = 0; rank < options_.nproc; ++rank) start(rank, options_.nproc, false);
  for (int spare = 0; spare < options_.spares; ++spare) start_spare();
}

void LocalRanks::start_spare() { start(ranks_, ranks_ + 1, true).rank = -1; }

bool LocalRanks::settled() const {
  return std::ranges::all_of(
      processes_, [](const RankProcess& p) { return p.rank < 0 || p.status || p.waiting; });
}

Launched LocalRanks::outcome() {
  for (RankProcess& p : processes_) output_.drain(p);
  Launched ended{.status = gravest(),
                 .ranks = ranks_,
                 .died = died_,
                 .hung = stuck_,
                 .standing_by = ready_spares(),
                 .interrupted = interrupted(),
                 .drained = draining_ && !failed_};
  if (ended.drained) ended.rebalanced = rebalance_;
  if (ended.interrupted) {
    ended.status = 128 + signal_;
    RankOutput::say(
        fmt::format("rehearse: interrupted{}\n",
                    at_once_ ? fmt::format(" by a second SIG{} before the run had saved and ended",
                                           sigabbrev_np(signal_))
                             : ""));
  } else {
    output_.show_held();
  }
  return ended;
}

void LocalRanks::end_all() {
  for (RankProcess& p : processes_) {
    if (p.status) continue;
    p.rank = -1;
    if (p.waiting)
      send(p.agent.get(), Assignment{.over = true});
    else
      kill(p.pid, SIGKILL);  // it stands by: there is nothing that it could lose
  }
  ending_ = true;
  deadline_ = Clock::now() + to_duration(options_.grace);
  while (
      !std::ranges::all_of(processes_, [](const RankProcess& p) { return p.status.has_value(); }))
    turn();
  ending_ = false;
}

void LocalRanks::go_on(const NextStart& next) {
  if (next.anew) end_all();
  std::erase_if(processes_, [](const RankProcess& p) { return p.status.has_value(); });
  const int here = next.here < 0 ? next.ranks : next.here;
  const bool same = next.ranks == ranks_ && next.here < 0;
  std::vector<std::size_t> places(static_cast<std::size_t>(here), nobody);
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    RankProcess& p = processes_[i];
    if (p.rank < 0) continue;
    const auto place = static_cast<std::size_t>(same ? p.rank : place_of(p, next.leaving));
    p.ready = std::ranges::count(next.leaving, p.rank) > 0 || place >= places.size();
    if (!p.ready) places[place] = i;
  }
  for (RankProcess& p : processes_) p.rank = -1;
  ranks_ = next.ranks;
  start_ = next.number == 0 ? start_ + 1 : next.number;
  for (std::size_t place = 0; place < places.size(); ++place) {
    const int rank = next.first + static_cast<int>(place);
    RankProcess& p =
        places[place] == nobody ? spare_or_new(rank, place, places) : processes_[places[place]];
    p.rank = rank;
    p.waiting = p.ready = false;
    send(p.agent.get(), Assignment{.rank = rank,
                                   .world_size = next.ranks,
                                   .local_rank = static_cast<int>(place),
                                   .local_world_size = here,
                                   .address = next.address.empty() ? address() : next.address,
                                   .port = next.port == 0 ? port() : next.port,
                                   .start = start_,
                                   .began_at = began_at_,
                                   .first = next.first_start,
                                   .resume_from = next.resume_from,
                                   .set = next.set});
  }
  joining_ = next.joining;
  if (joining_ > 0) joins_at_ = Clock::now() + to_duration(next.joining_after);
  down_since_ = std::exchange(failed_at_, std::nullopt);
  failed_ = draining_ = began_ = false;
  deadline_.reset();
  died_.clear();
  stuck_.clear();
  rebalance_.reset();
  output_.forget();
}
int LocalRanks::place_of(const RankProcess& process, const std::vector<int>& leaving) const {
  return static_cast<int>(std::ranges::count_if(processes_, [&](const RankProcess& p) {
    return p.rank >= 0 && p.rank < process.rank && std::ranges::count(leaving, p.rank) == 0;
  }));
}

RankProcess& LocalRanks::spare_or_new(int rank, std::size_t place,
                                      std::vector<std::size_t>& places) {
  std::size_t i = 0;
  while (i < processes_.size() &&
         (processes_[i].rank >= 0 || std::ranges::find(places, i) != places.end()))
    ++i;
  if (i == processes_.size()) start(rank, ranks_, true);
  places[place] = i;
  return processes_[i];
}

int LocalRanks::ready_spares() const {
  return static_cast<int>(std::ranges::count_if(
      processes_, [](const RankProcess& p) { return p.rank < 0 && p.ready && !p.status; }));
}

void LocalRanks::drain_if_due() {
  if (joining_ == 0 || down_since_ || failed_ || draining_ || ready_spares() < joining_) return;
  joining_ = 0;
  drain();
}

void LocalRanks::drain() {
  draining_ = true;
  for (const RankProcess& p : processes_)
    if (p.rank >= 0 && !p.status && !p.waiting) kill(p.pid, drain_signal);
}

void LocalRanks::hear(RankProcess& p) {
  try {
    while (const auto report = receive_report(p.agent.get())) heed(p, *report);
  } catch (const BackendError& error) {
    const std::string who =
        p.rank < 0 ? "a process that stands by" : fmt::format("rank {}", p.rank);
    RankOutput::say(
        fmt::format("rehearse: {} (pid {}) counts as dead: {}\n", who, p.pid, error.what()));
    p.agent = Fd();
    if (p.rank < 0)
      give_up(p);  // it stands by
    else
      lose(p.rank);
  }
  drain_if_due();
}

void LocalRanks::heed(RankProcess& p, const Report& report) {
  switch (report.kind) {
    case ReportKind::ready:
      p.ready = true;
      break;
    case ReportKind::began:
      began_ = true;
      if (began_at_ < 0) began_at_ = report.step;
      if (!down_since_) break;  // the first start
      options_.began(report.step, seconds_since(*std::exchange(down_since_, std::nullopt)));
      break;
    case ReportKind::failed:
      output_.emit(p.rank, fmt::format("{}{}\n", RankOutput::error_mark, report.text));
      if (std::ranges::count(died_, p.rank) > 0)  // evicted: it ends
        send(p.agent.get(), Assignment{.over = true});
      else
        p.waiting = true;
      fail();
      break;
    case ReportKind::evicted:
      died_.push_back(p.rank);
      fail();
      break;
    case ReportKind::unbalanced:
      if (draining_ || failed_) break;  // the next start has other ranks
      rebalance_ = {.why = report.text, .shares = report.shares};
      drain();
      break;
    case ReportKind::stuck:
      if (std::ranges::count(stuck_, report.rank) == 0) stuck_.push_back(report.rank);
      fail_because_of(report.rank, Seconds(report.silent));
      break;
    case ReportKind::broken:
      lose(report.rank);
      break;
    case ReportKind::drained:
      p.waiting = true;
      if (!failed_at_) failed_at_ = Clock::now();
      break;
  }
}

/// The exit status of the run. A rank that refuses (2) makes others fail (1), and some may have
/// ended in order (128 + n) before.
int LocalRanks::gravest() const {
  std::vector<int> statuses;
  for (const RankProcess& p : processes_)
    if (p.rank >= 0) statuses.push_back(p.status.value_or(failed_status));
  if (statuses.empty()) return 0;
  const auto grave = [](int status) { return status >= 128 ? 0 : status; };
  const int worst = std::ranges::max(statuses | std::views::transform(grave));
  return worst > 0 ? worst : std::ranges::max(statuses);
}

void LocalRanks::kill_all(int signal) {
  for (const RankProcess& p : processes_) {
    if (!p.status) kill(p.pid, signal);
  }
}

void LocalRanks::turn(std::optional<Seconds> at_most) {
  std::vector<pollfd> wait = {{signals_.fd(), POLLIN, 0}};
  for (const RankProcess& p : processes_) {
    wait.push_back({p.errors.get(), POLLIN, 0});
    wait.push_back({p.status ? -1 : p.agent.get(), POLLIN, 0});
  }
  std::optional<Deadline> until = deadline_ ? deadline_ : joins_at_;
  if (at_most)
    until = std::min(until.value_or(Deadline::max()), Clock::now() + to_duration(*at_most));
  poll(wait.data(), wait.size(), until ? milliseconds_until(*until) : -1);
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (wait[2 * i + 1].revents != 0) output_.drain(processes_[i]);
    if (wait[2 * i + 2].revents != 0) hear(processes_[i]);
  }
  while (const int signal = signals_.next()) {
    if (signal != SIGCHLD) pass_on(signal);
  }
  reap();
  if (deadline_ && Clock::now() >= *deadline_) {
    // Those that wait for their next assignment have ended this start in order.
    for (RankProcess& p : processes_)
      if (!p.status && (ending_ || (p.rank >= 0 && !p.waiting))) give_up(p);
    deadline_.reset();
  }
  if (joins_at_ && Clock::now() >= *joins_at_) {
    joins_at_.reset();
    for (int i = ready_spares(); i < joining_; ++i) start_spare();
  }
}

/// Whether the run ended because of a signal to this process.
bool LocalRanks::interrupted() const {
  return at_once_ || (signal_ != 0 && std::ranges::any_of(processes_, [&](const RankProcess& p) {
                        return p.rank >= 0 && p.status == 128 + signal_;
                      }));
}

/// Passes the first signal to the ranks, which may take long to save and end. Kills them on a
/// second request.
void LocalRanks::pass_on(int signal) {
  if (signal_ == 0) {
    signal_ = signal;
    signalled_at_ = Clock::now();
    output_.hold();
    kill_all(signal);
  } else if (Clock::now() - signalled_at_ >= to_duration(second_request_after)) {
    at_once_ = true;
    kill_all(SIGKILL);
  }
}

void LocalRanks::fail() {
  failed_ = true;
  if (!failed_at_) failed_at_ = Clock::now();
  if (!deadline_) deadline_ = Clock::now() + to_duration(options_.grace);
}

void LocalRanks::give_up(RankProcess& process) {
  process.killed = true;
  kill(process.pid, SIGKILL);
}

void LocalRanks::fail_because_of(int stuck, Seconds silent) {
  fail();
  failed_at_ = std::min(*failed_at_, Clock::now() - to_duration(silent));
  for (RankProcess& p : processes_)
    if (p.rank == stuck && !p.status && !p.waiting) give_up(p);
}

void LocalRanks::lose(int rank) {
  fail();
  if (std::ranges::count(died_, rank) > 0) return;
  died_.push_back(rank);
  for (RankProcess& p : processes_) {
    if (p.rank != rank || p.status) continue;
    p.waiting = false;
    give_up(p);
  }
}

void LocalRanks::reap() {
  for (RankProcess& p : processes_) {
    int status = 0;
    if (p.status || waitpid(p.pid, &status, WNOHANG) != p.pid) continue;
    if (p.agent) hear(p);
    p.status = exit_status(status);
    output_.drain(p);
    // A process without a rank may end: nothing runs there.
    if (p.rank < 0 || *p.status == 0) continue;
    if (WIFSIGNALED(status) && signal_ == 0) {
      // Not a signal that the launcher passed on: the run has failed.
      p.status = failed_status;
      // What the launcher itself kills was still there. Of the others each is said: the rank that
      // died first may be found after one that has ended because of it.
      if (!p.killed) {
        died_.push_back(p.rank);
        RankOutput::say(fmt::format("rehearse: rank {} (pid {}) was ended by signal {} ({})\n",
                                    p.rank, p.pid, WTERMSIG(status),
                                    sigabbrev_np(WTERMSIG(status))));
      }
    }
    fail();
  }
}

}  // namespace rehearse::runtime
