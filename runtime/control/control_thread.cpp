// A rank's side of the control plane (Control::Impl): joining the run, the thread that sends
// heartbeats and reads messages, and the forced end of a process after a verdict.

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

#include "runtime/control/control_impl.h"
#include "runtime/control/membership/agent_store.h"
#include "runtime/control/net/handshake.h"
#include "runtime/control/net/interfaces.h"

namespace rehearse::runtime {
namespace {

[[noreturn]] void end_interrupted(int signal) {
  fmt::print(stderr, "rehearse: interrupted by a second SIG{} before the run had saved and ended\n",
             sigabbrev_np(signal));
  std::fflush(stderr);
  _exit(128 + signal);
}

}  // namespace

std::string broken_message(Id to, const std::string& what) {
  return fmt::format("sent a broken message to rank {}: {}", to, what);
}

StepReport report_of(Message& message) {
  StepReport report;
  report.rank = message.take<Id>();
  report.step = message.take<std::int64_t>();
  report.values.resize(message.take_count(sizeof(double)));
  for (double& value : report.values) value = message.take<double>();
  return report;
}

std::string Control::Impl::rank_zero() const {
  if (!welcomed) return "rank 0";
  return fmt::format("rank 0 ({}, pid {})", members[0].host, members[0].pid);
}

/// As this host sees it, when rank 0 is here.
std::string Control::Impl::address_of_rank_zero() const {
  return environment.one_host()
             ? loopback
             : address_for_other_hosts(options.interface, environment.master_address);
}

void Control::Impl::queue(Message message) {
  {
    const std::lock_guard lock(mutex);
    outgoing.push_back(std::move(message));
  }
  notify(wake.get());
}

void Control::Impl::judge(const std::string& what, Id rank, Fate fate) {
  if (verdict || released) return;
  verdict = what;
  if (fate != Fate::ends && options.lost) options.lost(rank, fate);
  judged_at = Clock::now();
  notify(failed.get());
  changed.notify_all();
}

void Control::Impl::vote() {
  outgoing.push_back(
      Message(MessageKind::vote).put(begun).put(static_cast<std::uint8_t>(free_running)));
}

void Control::Impl::welcome(Message& message) {
  data_secret = derived(secret, message.take<Secret>());
  for (int r = 0; r < environment.world_size; ++r) {
    MemberInfo m;
    m.host = message.take_text();
    m.pid = message.take<std::int64_t>();
    m.address = message.take_text();
    members.push_back(std::move(m));
  }
  welcomed = true;
}

void Control::Impl::handle(Message& message) {
  const std::lock_guard lock(mutex);
  switch (message.kind()) {
    case MessageKind::welcome:
      welcome(message);
      break;
    case MessageKind::tick:
      return;
    case MessageKind::set: {
      std::string key = message.take_text();
      values.emplace(std::move(key), message.take_text());
      break;
    }
    case MessageKind::report:
      reports.push_back(report_of(message));
      break;
    case MessageKind::propose:
      voting = true;
      vote();
      break;
    case MessageKind::last:
      last = message.take<std::int64_t>();
      voting = false;
      break;
    case MessageKind::verdict: {
      const Id rank = message.take<Id>();
      const Fate fate = message.take<Fate>();
      if (fate > Fate::broken) throw BackendError("a verdict of an unknown kind");
      judge(message.take_text(), rank, fate);
      break;
    }
    case MessageKind::interrupt:
      end_interrupted(message.take<std::int32_t>());
    case MessageKind::release:
      released = true;
      break;
    default:
      throw BackendError("a message that is not the supervisor's");
  }
  changed.notify_all();
}

void Control::Impl::lose(const std::string& what, Fate fate) {
  const std::lock_guard lock(mutex);
  judge(rank_zero() + " " + what, 0, fate);
  connection = FrameSocket();
}

void Control::Impl::beat(Deadline now) {
  if (now < next_beat) return;
  next_beat = now + to_duration(options.heartbeat);
  {
    const std::lock_guard lock(updates_lock);
    for (const std::function<void()>& update : updates) update();
  }
  const std::lock_guard lock(mutex);
  if (lanes_told != lane_names.size()) {
    lanes_told = lane_names.size();
    Message names(MessageKind::lanes);
    names.put(static_cast<std::uint32_t>(lanes_told));
    for (const std::string& name : lane_names) names.put_text(name);
    connection.queue(names);
  }
  Message message(MessageKind::beat);
  for (const LaneProgress& lane : lanes) message.put(lane.packed()).put(lane.pulses());
  connection.queue(message);
}

void Control::Impl::send_outgoing() {
  if (stop_wanted.exchange(false)) connection.queue(Message(MessageKind::stop));
  const std::lock_guard lock(mutex);
  for (const Message& message : outgoing) connection.queue(message);
  outgoing.clear();
}

void Control::Impl::pass_on_interrupt(Deadline now) {
  const int signal = interrupt_wanted;
  if (signal == 0) return;
  if (!interrupted_by) {
    interrupted_by = now + std::chrono::seconds(1);
    if (connection) connection.queue(Message(MessageKind::interrupt).put(std::int32_t{signal}));
  }
  if (!connection || now >= *interrupted_by) end_interrupted(signal);
}

void Control::Impl::receive() {
  const bool open = connection.fill();
  heard = Clock::now();
  while (auto message = connection.next()) {
    handle(*message);
    message->check_end();
  }
  if (!open) lose("ended without a word: it was killed or crashed");
}

void Control::Impl::end_if_overdue(Deadline now) {
  if (options.exit_after.value <= 0) return;
  const std::lock_guard lock(mutex);
  if (!verdict || now - judged_at < to_duration(options.exit_after)) return;
  fmt::print(stderr, "rehearse: {}\n", *verdict);
  std::fflush(stderr);
  _exit(1);
}

void Control::Impl::turn() {
  std::array<pollfd, 2> wait = {{{wake.get(), POLLIN, 0}, {connection.fd(), POLLIN, 0}}};
  if (connection && connection.has_output()) wait[1].events |= POLLOUT;
  poll(wait.data(), wait.size(), milliseconds_until(next_beat));
  const auto now = Clock::now();
  const auto gap = now - std::exchange(last_turn, now);
  // A long gap means that this process was suspended: then the supervisor was not silent, and no
  // thread of this process could end.
  if (gap > 4 * to_duration(options.heartbeat)) {
    heard += gap;
    judged_at += gap;
  }
  if (wait[0].revents != 0) clear(wake.get());
  pass_on_interrupt(now);
  if (!connection) {
    next_beat = now + to_duration(options.heartbeat);
    end_if_overdue(now);
    return;
  }
  try {
    if ((wait[1].revents & ~POLLOUT) != 0) receive();
    if (!connection) return;
    beat(now);
    send_outgoing();
    if (!connection.flush()) {
      receive();  // a verdict may have come
      if (connection) lose("ended without a word: it was killed or crashed");
      return;
    }
    if (now - heard > to_duration(options.timeout)) {
      lose(fmt::format(
               "has been silent for {:.1f} s: it is stopped, its machine is down or the network is "
               "cut",
               seconds_since(heard)),
           Fate::stuck);
    }
  } catch (const BackendError& error) {
    // All others hear it from the supervisor, and not that this rank has closed its connection.
    connection.queue(Message(MessageKind::accuse).put(Id{0}).put_text(error.what()));
    connection.flush();
    lose(broken_message(static_cast<Id>(environment.rank), error.what()), Fate::broken);
  }
  end_if_overdue(now);
}

void Control::Impl::run() {
  while (!ending.load()) turn();
  if (!connection) return;
  send_outgoing();
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  while (connection.has_output() && Clock::now() < deadline) {
    pollfd wait = {connection.fd(), POLLOUT, 0};
    if (poll(&wait, 1, milliseconds_until(deadline)) < 0 || !connection.flush()) break;
  }
}

/// Rank 0 makes one, which the others find in torchrun's store.
bool Control::Impl::store_has_secret() const {
  return environment.agent_store && !environment.secret && options.secret_file.empty() &&
         !options.encrypt;
}

Secret Control::Impl::find_secret() const {
  if (environment.secret) return *environment.secret;
  if (!options.secret_file.empty())
    return secret_in(options.secret_file, environment.rank == 0, options.join);
  if (environment.world_size == 1) return random_secret();
  if (options.encrypt)
    throw InputError(fmt::format(
        "run.encrypt = true needs a secret that is not on the network: set run.secret_file to a "
        "path that all hosts share, or the same {} (64 hexadecimal digits) on all of them",
        secret_variable));
  if (store_has_secret()) return random_secret();
  // On one host ranks listen on the loopback only.
  if (!environment.one_host() && !options.trust_network)
    throw InputError(fmt::format(
        "the ranks are on several hosts and have no secret, so everybody on the network could join "
        "or end the run: set run.secret_file to a path that all hosts share, or the same {} (64 "
        "hexadecimal digits) on all of them, or run.trust_network = true",
        secret_variable));
  if (!environment.one_host() && environment.rank == 0) {
    fmt::print(stderr,
               "rehearse: run.trust_network = true: whoever reaches the ports of this run "
               "can join it or end it\n");
    std::fflush(stderr);
  }
  return {};
}

void Control::Impl::start() {
  const auto deadline = Clock::now() + to_duration(options.join);
  MeetingPlace place{.address = environment.master_address, .port = environment.master_port};
  const bool asks_store = environment.agent_store && environment.rank != 0;
  const bool is_told = asks_store && store_has_secret();
  if (!is_told) secret = find_secret();
  if (asks_store) place = ask_agent_store(environment, options.join);
  if (is_told) secret = place.secret;
  if (environment.rank == 0) {
    if (options.encrypt) {
      fmt::print(stderr,
                 "rehearse: run.encrypt = true: the connections of this run are encrypted\n");
      std::fflush(stderr);
    }
    const bool any_port = environment.agent_store || environment.world_size == 1;
    Fd listener = environment.listener >= 0
                      ? Fd(environment.listener)
                      : listen_on(any_port ? std::uint16_t{0} : place.port, address_of_rank_zero());
    place = {.address = local_address(listener.get()), .port = port_of(listener.get())};
    if (store_has_secret()) place.secret = secret;
    supervisor = std::make_unique<Supervisor>(std::move(listener), environment.world_size,
                                              environment.start, secret, options);
    if (environment.agent_store) tell_agent_store(environment, place, options.join);
  } else if (!asks_store && environment.launcher != "rehearse" &&
             (environment.one_host() || is_this_host(place.address))) {
    // The host's name may stand for another one of its addresses than rank 0 listens on.
    place.address = address_of_rank_zero();
  }
  const Caller self{.encrypted = options.encrypt,
                    .from = static_cast<std::uint32_t>(environment.rank),
                    .start = static_cast<std::uint32_t>(environment.start)};
  try {
    connection = FrameSocket(connect_as(self, secret, place.address, place.port, deadline));
  } catch (const BackendError& error) {
    throw BackendError(fmt::format("rank 0 did not come: {}", error.what()));
  }
  address = local_address(connection.fd());
  connection.queue(CommHello{.world_size = static_cast<std::uint32_t>(environment.world_size),
                             .host = host_name(),
                             .pid = getpid()}
                       .message());
  connection.flush();
  heard = last_turn = Clock::now();
  thread = std::thread([this] { run(); });
  std::unique_lock lock(mutex);
  // The supervisor gives up at its own deadline and names the missing ranks, so wait longer than it
  // does.
  const auto patience = deadline + 2 * to_duration(options.heartbeat) + std::chrono::seconds(1);
  if (!wait_until(lock, patience, [this] { return welcomed; })) {
    throw BackendError("rank 0 did not say that every rank has come");
  }
}

}  // namespace rehearse::runtime
