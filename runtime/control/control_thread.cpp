// A rank's side of the control plane (Control::Impl): joining the run, the thread that sends
// heartbeats and reads messages, and the forced end of a process after a verdict.

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

#include "runtime/control/agent_store.h"
#include "runtime/control/control_impl.h"

namespace rehearse::runtime {
namespace {

[[noreturn]] void end_interrupted(int signal) {
  fmt::print(stderr, "rehearse: interrupted by a second SIG{} before the run had saved and ended\n",
             sigabbrev_np(signal));
  std::fflush(stderr);
  _exit(128 + signal);
}

}  // namespace

std::string Control::Impl::rank_zero() const {
  if (!welcomed) return "rank 0";
  return fmt::format("rank 0 ({}, pid {})", members[0].host, members[0].pid);
}

void Control::Impl::queue(Message message) {
  {
    const std::lock_guard lock(mutex);
    outgoing.push_back(std::move(message));
  }
  notify(wake.get());
}

void Control::Impl::judge(const std::string& what, Id stuck) {
  if (verdict || released) return;
  verdict = what;
  if (stuck != none && options.stuck) options.stuck(stuck);
  judged_at = Clock::now();
  notify(failed.get());
  changed.notify_all();
}

void Control::Impl::vote() {
  outgoing.push_back(
      Message(MessageKind::vote).put(begun).put(static_cast<std::uint8_t>(free_running)));
}

void Control::Impl::welcome(Message& message) {
  token = message.take_text();
  for (int r = 0; r < environment.world_size; ++r) {
    MemberInfo m;
    m.host = message.take_text();
    m.pid = message.take<std::int64_t>();
    m.address = message.take_text();
    // A loopback address is only valid on rank 0's host. From here such ranks are where rank 0 is.
    if (is_loopback(m.address)) m.address = supervisor_address;
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
    case MessageKind::report: {
      StepReport report;
      report.rank = message.take<Id>();
      report.step = message.take<std::int64_t>();
      report.values.resize(message.take<std::uint32_t>());
      for (double& value : report.values) value = message.take<double>();
      reports.push_back(std::move(report));
      break;
    }
    case MessageKind::propose:
      voting = true;
      vote();
      break;
    case MessageKind::last:
      last = message.take<std::int64_t>();
      voting = false;
      break;
    case MessageKind::verdict: {
      const Id stuck = message.take<Id>();
      judge(message.take_text(), stuck);
      break;
    }
    case MessageKind::interrupt:
      end_interrupted(message.take<std::int32_t>());
    case MessageKind::release:
      released = true;
      break;
    default:
      judge(rank_zero() + " sent a message that is not the supervisor's");
  }
  changed.notify_all();
}

void Control::Impl::lose(const std::string& what, Id stuck) {
  const std::lock_guard lock(mutex);
  judge(rank_zero() + " " + what, stuck);
  connection = FrameSocket();
}

void Control::Impl::beat(Deadline now) {
  if (now < next_beat) return;
  next_beat = now + to_duration(options.heartbeat);
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
  while (auto message = connection.next()) handle(*message);
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
  // A long gap means that this process was suspended: then the supervisor was not silent.
  if (gap > 4 * to_duration(options.heartbeat)) heard += gap;
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
           0);
    }
  } catch (const BackendError& error) {
    lose(fmt::format("sent a broken message: {}", error.what()));
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

void Control::Impl::start() {
  const auto deadline = Clock::now() + to_duration(options.join);
  std::string host = environment.master_address;
  std::uint16_t port = environment.master_port;
  if (environment.rank == 0) {
    const bool any_port = environment.agent_store || environment.world_size == 1;
    Fd listener = environment.listener >= 0 ? Fd(environment.listener)
                                            : listen_on(any_port ? std::uint16_t{0} : port);
    port = port_of(listener.get());
    host = "127.0.0.1";
    supervisor = std::make_unique<Supervisor>(std::move(listener), environment.world_size,
                                              environment.start, options);
    if (environment.agent_store) tell_agent_store(environment, port, options.join);
  } else if (environment.agent_store) {
    port = ask_agent_store(environment, options.join);
  }
  try {
    connection = FrameSocket(connect_to(host, port, deadline));
  } catch (const BackendError& error) {
    throw BackendError(fmt::format("rank 0 did not come: {}", error.what()));
  }
  supervisor_address = peer_address(connection.fd());
  connection.queue(CommHello{.rank = static_cast<std::uint32_t>(environment.rank),
                             .world_size = static_cast<std::uint32_t>(environment.world_size),
                             .start = static_cast<std::uint32_t>(environment.start),
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
