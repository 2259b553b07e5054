#include "runtime/control/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <optional>
#include <ranges>
#include <set>
#include <thread>
#include <utility>

#include "engine/base/errors.h"
#include "runtime/control/net/door.h"

namespace rehearse::runtime {
namespace {

constexpr std::size_t most_refusals = 32;  // that are remembered

struct Member {
  FrameSocket connection = {};
  std::string host = {}, address = {};
  std::int64_t pid = 0;
  Deadline heard = {};
  bool joined = false, voted = false, free_running = false;
  std::int64_t begun = -1;
  RankView view = {};
};

/// A connection that has proven that it is a rank of this run, but is no member: its hello has not
/// come yet, or it was refused and has not read why.
struct Stranger {
  std::uint32_t rank = 0;
  FrameSocket connection = {};
  bool refused = false;
  Deadline until = Clock::now() + to_duration(Door::patience);
};

}  // namespace

struct Supervisor::Impl {
  Door door;
  ControlOptions options;
  std::vector<Member> members;
  std::vector<Stranger> strangers = {};
  std::set<std::string> refusals = {};
  Fd wake = make_signal();
  std::atomic<bool> ending = false;
  Deadline started = Clock::now(), last_tick = {}, last_turn = Clock::now();
  bool welcomed = false, voting = false, decided = false, judged = false;
  std::optional<Message> verdict = {};
  std::thread thread = {};

  Impl(Fd listener, int world_size, int start, const Secret& secret, ControlOptions options_in)
      : door(std::move(listener), secret,
             {.encrypted = options_in.encrypt, .start = static_cast<std::uint32_t>(start)}),
        options(std::move(options_in)),
        members(static_cast<std::size_t>(world_size)) {}

  std::string name(std::size_t rank) const {
    const Member& m = members[rank];
    return m.joined ? fmt::format("rank {} ({}, pid {})", rank, m.host, m.pid)
                    : fmt::format("rank {}", rank);
  }
  void broadcast(const Message& message) {
    for (Member& m : members) {
      if (m.connection) m.connection.queue(message);
    }
  }
  void judge(const std::string& what, Id rank = none, Fate fate = Fate::ends) {
    if (std::exchange(judged, true)) return;
    verdict = Message(MessageKind::verdict).put(rank).put(fate).put_text(what);
    broadcast(*verdict);
  }
  void judge_rank(std::size_t rank, const std::string& what, Fate fate = Fate::ends) {
    judge(name(rank) + " " + what, static_cast<Id>(rank), fate);
  }

  void welcome() {
    welcomed = true;
    Message message(MessageKind::welcome);
    message.put(random_secret());
    for (const Member& m : members) message.put_text(m.host).put(m.pid).put_text(m.address);
    broadcast(message);
  }

  /// Empty: the rank may join.
  std::string refusal_of(std::uint32_t rank, const CommHello& hello) const {
    const std::string who = fmt::format("rank {} ({}, pid {})", rank, hello.host, hello.pid);
    if (hello.world_size != members.size())
      return fmt::format("{} was started for {} ranks, rank 0 for {}", who, hello.world_size,
                         members.size());
    if (rank >= members.size())
      return fmt::format("{} is not one of {} ranks", who, members.size());
    if (members[rank].joined)
      return fmt::format("two processes are rank {}: {} and {}", rank, name(rank), who);
    return {};
  }

  /// Ends the one who was refused, and nobody else.
  void refuse(Stranger& stranger, const std::string& why) {
    stranger.refused = true;
    stranger.connection.queue(
        Message(MessageKind::verdict).put(none).put(Fate::ends).put_text(why));
    stranger.connection.flush();
    if (refusals.size() >= most_refusals || !refusals.insert(why).second) return;
    fmt::print(stderr, "rehearse: refused: {}\n", why);
    std::fflush(stderr);
  }

  void join(std::uint32_t rank, FrameSocket connection, const CommHello& hello) {
    Member& m = members[rank];
    m.address = peer_address(connection.fd());
    m.connection = std::move(connection);
    m.host = hello.host;
    m.pid = hello.pid;
    m.heard = Clock::now();
    m.joined = true;
    m.view.rank = rank;
    m.view.since = m.heard;
    if (verdict) m.connection.queue(*verdict);  // it joined after the verdict
    if (std::ranges::all_of(members, &Member::joined)) welcome();
  }

  void beat(Member& m, Message& message) {
    for (LaneView& lane : m.view.lanes) {
      const auto packed = message.take<std::uint64_t>();
      const auto pulses = message.take<std::uint64_t>();
      if (packed != lane.packed || pulses != lane.pulses) lane.since = m.heard;
      lane.packed = packed;
      lane.pulses = pulses;
    }
  }

  void count_votes() {
    if (!voting || decided || !std::ranges::all_of(members, &Member::voted)) return;
    decided = true;
    std::int64_t last = -1;
    bool any_free = false;
    for (const Member& m : members) {
      if (m.free_running)
        any_free = true;
      else
        last = std::max(last, m.begun);
    }
    if (any_free) ++last;
    broadcast(Message(MessageKind::last).put(last));
  }

  void handle(std::size_t rank, Message& message) {
    Member& m = members[rank];
    switch (message.kind()) {
      case MessageKind::lanes: {
        m.view.lanes.resize(message.take_count(sizeof(std::uint32_t)));
        for (LaneView& lane : m.view.lanes) {
          lane.name = message.take_text();
          if (lane.since == Deadline{}) lane.since = m.heard;
        }
        return;
      }
      case MessageKind::beat:
        beat(m, message);
        return;
      case MessageKind::set:
        message.take_text();
        message.take_text();
        message.check_end();
        broadcast(message);
        return;
      case MessageKind::report:
        if (report_of(message).rank != rank) throw BackendError("a report of another rank");
        message.check_end();
        members[0].connection.queue(message);
        return;
      case MessageKind::stop:
        if (!std::exchange(voting, true)) broadcast(Message(MessageKind::propose));
        return;
      case MessageKind::vote:
        m.begun = message.take<std::int64_t>();
        m.free_running = message.take<std::uint8_t>() != 0;
        m.voted = true;
        count_votes();
        return;
      case MessageKind::interrupt:
        message.take<std::int32_t>();
        judged = true;
        broadcast(message);
        // This thread ends with rank 0's process, so the other ranks must be told first.
        for (Member& other : members | std::views::reverse)
          if (other.connection) other.connection.flush();
        return;
      case MessageKind::fail:
        judge_rank(rank, "failed: " + message.take_text());
        return;
      case MessageKind::accuse: {
        const Id accused = message.take<Id>();
        if (accused >= members.size()) throw BackendError("it accuses a rank that is not there");
        judge_rank(accused, broken_message(static_cast<Id>(rank), message.take_text()),
                   Fate::broken);
        return;
      }
      case MessageKind::finish:
        m.view.finished = true;
        m.view.since = m.heard;
        if (std::ranges::all_of(members, [](const Member& x) { return x.view.finished; })) {
          judged = true;  // from now on any rank may leave
          broadcast(Message(MessageKind::release));
        }
        return;
      default:
        throw BackendError("unexpected message");
    }
  }

  void lost(std::size_t rank) {
    members[rank].connection = FrameSocket();
    judge_rank(rank, "ended without a word: it was killed or crashed");
  }

  void serve(std::size_t rank) {
    Member& m = members[rank];
    try {
      const bool open = m.connection.fill();
      m.heard = Clock::now();
      while (auto message = m.connection.next()) {
        handle(rank, *message);
        message->check_end();
      }
      if (!open) lost(rank);
    } catch (const BackendError& error) {
      judge_rank(rank, broken_message(0, error.what()), Fate::broken);
      m.connection.flush();  // so that it knows why
      m.connection = FrameSocket();
    }
  }

  /// Returns false when the stranger is to be forgotten: it has joined, or its connection ended.
  bool read_hello(Stranger& stranger) {
    try {
      const bool open = stranger.connection.fill() && Clock::now() < stranger.until;
      if (stranger.refused) return open;
      auto message = stranger.connection.next();
      if (!message) return open;
      const CommHello hello = CommHello::of(*message);
      const std::string refusal = refusal_of(stranger.rank, hello);
      if (refusal.empty()) {
        join(stranger.rank, std::move(stranger.connection), hello);
        serve(stranger.rank);  // what came with the hello is read already
      } else {
        refuse(stranger, refusal);
      }
      return stranger.refused;
    } catch (const BackendError& error) {
      refuse(stranger, fmt::format("rank {} said no hello: {}", stranger.rank, error.what()));
      return true;
    }
  }

  void watch(Deadline now) {
    if (judged) return;
    if (!welcomed) {
      if (now - started <= to_duration(options.join)) return;
      std::vector<std::size_t> missing;
      for (std::size_t r = 0; r < members.size(); ++r) {
        if (!members[r].joined) missing.push_back(r);
      }
      judge(fmt::format("rank{} {} did not come within {}{}{}", missing.size() > 1 ? "s" : "",
                        fmt::join(missing, ", "), to_text(options.join),
                        refusals.empty() ? "" : "; refused were: ", fmt::join(refusals, "; ")));
      return;
    }
    std::vector<RankView> views;
    for (std::size_t r = 0; r < members.size(); ++r) {
      if (now - members[r].heard > to_duration(options.timeout)) {
        judge_silent(r, now);
        return;
      }
      views.push_back(members[r].view);
    }
    if (const auto blame = find_hang(views, now, options)) {
      if (blame->rank == none) {
        judge(blame->what);
      } else {
        judge_rank(blame->rank, blame->what, Fate::stuck);
      }
    }
  }

  /// Rank r has been silent for the timeout. If all other hosts fell silent with it, the cause is
  /// the network of this host.
  void judge_silent(std::size_t first, Deadline now) {
    const auto about = to_duration(options.timeout) - 2 * to_duration(options.heartbeat);
    std::vector<std::size_t> like;
    std::set<std::string> silent, speaking;
    for (std::size_t r = 0; r < members.size(); ++r) {
      const bool quiet = now - members[r].heard > about;
      (quiet ? silent : speaking).insert(members[r].host);
      if (quiet && r != first) like.push_back(r);
    }
    const std::string seconds = fmt::format("{:.1f} s", seconds_since(members[first].heard));
    if (silent.size() > 1 && speaking == std::set<std::string>{members[0].host}) {
      judge_rank(0,
                 fmt::format("has heard from no other host for {}: its network is cut", seconds));
      return;
    }
    const std::string others =
        like.empty()
            ? ""
            : fmt::format(", like rank{} {}", like.size() > 1 ? "s" : "", fmt::join(like, ", "));
    judge_rank(first,
               fmt::format("has been silent for {}{}: it is stopped, its machine is down or "
                           "the network is cut",
                           seconds, others),
               Fate::stuck);
  }

  /// Time in which this process was suspended counts against no rank.
  void forgive(Deadline now) {
    const auto gap = now - last_turn;
    last_turn = now;
    if (gap < 4 * to_duration(options.heartbeat)) return;
    started += gap;
    for (Member& m : members) {
      m.heard += gap;
      m.view.since += gap;
      for (LaneView& lane : m.view.lanes) lane.since += gap;
    }
  }

  void turn() {
    std::vector<pollfd> wait = {{wake.get(), POLLIN, 0}};
    std::vector<std::size_t> rank_of;
    for (std::size_t r = 0; r < members.size(); ++r) {
      const FrameSocket& connection = members[r].connection;
      if (!connection) continue;
      const short out = connection.has_output() ? POLLOUT : 0;
      wait.push_back({connection.fd(), static_cast<short>(POLLIN | out), 0});
      rank_of.push_back(r);
    }
    const std::size_t known = wait.size();
    for (const Stranger& s : strangers) wait.push_back({s.connection.fd(), POLLIN, 0});
    door.add_to(wait);
    const auto next = last_tick + to_duration(options.heartbeat);
    poll(wait.data(), wait.size(), milliseconds_until(next));
    forgive(Clock::now());
    for (std::size_t i = 1; i < known; ++i) {
      if ((wait[i].revents & ~POLLOUT) != 0) serve(rank_of[i - 1]);
    }
    std::erase_if(strangers, [this](Stranger& s) { return !read_hello(s); });
    door.turn([this](const Caller& caller, ByteStream stream) {
      if (strangers.size() == Door::most_waiting) strangers.erase(strangers.begin());
      strangers.push_back({.rank = caller.from, .connection = FrameSocket(std::move(stream))});
    });
    const auto now = Clock::now();
    if (now >= next) {
      last_tick = now;
      watch(now);
      broadcast(Message(MessageKind::tick));
    }
    for (std::size_t r = 0; r < members.size(); ++r) {
      if (members[r].connection && !members[r].connection.flush()) lost(r);
    }
  }

  void run() {
    while (!ending.load()) turn();
    turn();  // reads what rank 0 sent before it ended this thread
    const auto deadline = Clock::now() + std::chrono::seconds(1);
    for (Member& m : members) {
      while (m.connection && m.connection.has_output() && Clock::now() < deadline) {
        pollfd wait = {m.connection.fd(), POLLOUT, 0};
        if (poll(&wait, 1, milliseconds_until(deadline)) < 0 || !m.connection.flush()) break;
      }
    }
  }
};

Supervisor::Supervisor(Fd listener, int world_size, int start, const Secret& secret,
                       ControlOptions options)
    : impl_(std::make_unique<Impl>(std::move(listener), world_size, start, secret,
                                   std::move(options))) {
  impl_->thread = std::thread([this] { impl_->run(); });
}

Supervisor::~Supervisor() {
  impl_->ending = true;
  notify(impl_->wake.get());
  impl_->thread.join();
}

}  // namespace rehearse::runtime
