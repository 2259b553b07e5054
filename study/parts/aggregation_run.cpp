#include "study/parts/aggregation_run.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>

#include "engine/base/child.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/numbers/random.h"
#include "engine/secure/client.h"
#include "engine/secure/server.h"

namespace rehearse::study {
namespace {

std::vector<float> drawn_weights(const secure::Settings& settings, Id client) {
  const RandomKey key = random_key(settings.seed, Draw::test, client, 0);
  std::vector<float> out(static_cast<std::size_t>(settings.elements));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(2 * random_uniform(key, static_cast<std::uint32_t>(i)) - 1);
  return out;
}

/// Whether all bytes went through; false at the end of the stream. Throws BackendError when the
/// other side stops within a message for longer than the socket's timeout.
bool pass(int socket, unsigned char* bytes, std::size_t size, bool sends) {
  while (size > 0) {
    const ssize_t n =
        sends ? send(socket, bytes, size, MSG_NOSIGNAL) : recv(socket, bytes, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN)
      throw BackendError("a client stopped within a message: give it more time with --timeout");
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool write_message(int socket, const secure::Message& message) {
  std::uint64_t size = message.size();
  secure::Message copy = message;
  return pass(socket, reinterpret_cast<unsigned char*>(&size), sizeof size, true) &&
         pass(socket, copy.data(), copy.size(), true);
}

std::optional<secure::Message> read_message(int socket, std::size_t most) {
  std::uint64_t size = 0;
  if (!pass(socket, reinterpret_cast<unsigned char*>(&size), sizeof size, false) || size > most)
    return std::nullopt;
  secure::Message out(size);
  if (!pass(socket, out.data(), out.size(), false)) return std::nullopt;
  return out;
}

using Clock = std::chrono::steady_clock;

/// A client's whole life in its process. `silent`: it does not end before the server ends it.
void be_client(const secure::Group& group, Id me, int leaves, bool silent, double weight,
               int socket, std::size_t most) {
  secure::Client client(group, me);
  secure::Message answer;
  for (int round = 0; round < std::min(leaves, secure::rounds); ++round) {
    secure::Message message;
    switch (static_cast<secure::Round>(round)) {
      case secure::Round::advertise:
        message = client.advertise();
        break;
      case secure::Round::share:
        message = client.share(answer);
        break;
      case secure::Round::mask:
        message = client.mask(
            answer, levels_of(drawn_weights(group.settings, me), weight, group.settings.ring));
        break;
      case secure::Round::unmask:
        message = client.unmask(answer);
        break;
    }
    if (!write_message(socket, message)) return;
    std::optional<secure::Message> got = read_message(socket, most);
    if (!got) return;
    answer = std::move(*got);
  }
  if (silent)
    while (true) pause();
}

/// A client's process, and the server's end of its socket.
class Process {
 public:
  /// `timeout`: of the server's end.
  template <class Work>
  Process(Seconds timeout, const Work& work) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw BackendError(fmt::format("no socket for a client: {}", std::strerror(errno)));
    socket_ = ends[0];
    const auto whole = static_cast<time_t>(timeout.value);
    const timeval limit{
        .tv_sec = whole,
        .tv_usec = static_cast<suseconds_t>(1e6 * (timeout.value - static_cast<double>(whole)))};
    for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
      setsockopt(socket_, SOL_SOCKET, option, &limit, sizeof limit);
    pid_ = fork_child();
    if (pid_ == 0) {
      close(socket_);
      try {
        work(ends[1]);
      } catch (const std::exception& error) {
        fmt::print(stderr, "a client of the secure sum: {}\n", error.what());
        _exit(1);
      }
      _exit(0);
    }
    close(ends[1]);
    if (pid_ < 0) {
      close(socket_);
      throw BackendError(fmt::format("no process for a client: {}", std::strerror(errno)));
    }
  }
  Process(Process&&) = delete;
  ~Process() {
    close(socket_);
    kill(pid_, SIGKILL);
    wait_for(pid_);
  }
  int socket() const { return socket_; }

 private:
  pid_t pid_ = 0;
  int socket_ = -1;
};

using Clients = std::vector<std::unique_ptr<Process>>;

/// Waits until every client has begun to speak or has ended, or no other one has for `timeout`.
/// Returns who is silent, by client.
std::vector<bool> silent_ones(const Clients& clients, Seconds timeout) {
  std::vector<bool> silent(clients.size());
  std::vector<pollfd> waiting;
  std::vector<Id> who;
  for (Id id = 0; id < clients.size(); ++id) {
    if (!clients[id]) continue;
    silent[id] = true;
    waiting.push_back({.fd = clients[id]->socket(), .events = POLLIN, .revents = 0});
    who.push_back(id);
  }
  const auto patience =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout.value));
  auto deadline = Clock::now() + patience;
  while (!waiting.empty()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const auto most = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
    if (poll(waiting.data(), waiting.size(), most) <= 0) {
      if (Clock::now() >= deadline) break;
      continue;
    }
    for (std::size_t i = waiting.size(); i-- > 0;) {
      if (waiting[i].revents == 0) continue;
      silent[who[i]] = false;
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
      who.erase(who.begin() + static_cast<std::ptrdiff_t>(i));
    }
    deadline = Clock::now() + patience;
  }
  return silent;
}

/// What the sum and the mean should be, from the same draws.
void compare(AggregationRun& out, const secure::Group& group, const std::vector<double>& weights,
             const secure::Server& server, const std::vector<float>& mean) {
  std::vector<std::uint32_t> sum(mean.size());
  std::vector<double> exact(mean.size());
  double all = 0;
  for (const Id client : server.counted()) {
    const std::vector<float> values = drawn_weights(group.settings, client);
    const std::vector<std::uint32_t> levels =
        levels_of(values, weights[client], group.settings.ring);
    all += weights[client];
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += levels[i];
      exact[i] += weights[client] * values[i];
    }
  }
  out.counted = static_cast<int>(server.counted().size());
  out.exact = server.sum() == sum;
  for (std::size_t i = 0; i < mean.size(); ++i)
    out.error = std::max(out.error, std::abs(mean[i] - exact[i] / all));
}

}  // namespace

AggregationRun run_aggregation(const secure::Group& group, const Taking& part,
                               const std::vector<double>& weights) {
  const auto begin = Clock::now();
  // Nobody sends more in one message: levels, a mean, or keys and shares of all others.
  const auto most = static_cast<std::size_t>(4 * group.settings.elements +
                                             128 * std::int64_t{group.settings.clients});
  AggregationRun out;
  out.traffic.resize(part.leaving.size());
  Clients clients;
  for (Id id = 0; id < part.leaving.size(); ++id)
    clients.push_back(std::make_unique<Process>(part.timeout, [&](int socket) {
      be_client(group, id, part.leaving[id], part.silent[id] < secure::rounds, weights[id], socket,
                most);
    }));
  secure::Server server(group, weights);
  std::vector<float> mean;
  for (std::size_t round = 0; round < secure::rounds; ++round) {
    const std::vector<bool> silent = silent_ones(clients, part.timeout);
    for (Id id = 0; id < clients.size(); ++id) {
      if (!clients[id]) continue;
      if (silent[id]) {
        if (part.silent[id] > static_cast<int>(round))
          throw BackendError(fmt::format(
              "client {} sent nothing for {} in round {}: give it more time with --timeout", id,
              to_text(part.timeout), name_of(static_cast<secure::Round>(round))));
        clients[id].reset();
        continue;
      }
      const std::optional<secure::Message> message = read_message(clients[id]->socket(), most);
      if (!message) {
        clients[id].reset();
        continue;
      }
      out.traffic[id].up[round] = static_cast<std::int64_t>(message->size());
      server.take(id, *message);
    }
    for (const auto& [id, answer] : server.close()) {
      if (mean.empty() && round + 1 == secure::rounds) mean = secure::read_mean(answer);
      if (write_message(clients[id]->socket(), answer))
        out.traffic[id].down[round] = static_cast<std::int64_t>(answer.size());
      else
        clients[id].reset();
    }
  }
  const std::chrono::duration<double> took = Clock::now() - begin;
  out.seconds = took.count();
  compare(out, group, weights, server, mean);
  return out;
}

}  // namespace rehearse::study
