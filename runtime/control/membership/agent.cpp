#include "runtime/control/membership/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "runtime/control/launch/rank_process.h"

namespace rehearse::runtime {
namespace {

constexpr const char* broken = "a broken message between launcher and rank";
constexpr std::size_t longest = 64 << 10;  // bytes of a packet; a longer error text is cut

void send_packet(int fd, const nlohmann::json& packet) {
  const std::string text = packet.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // A launcher or process that has just ended is noticed elsewhere.
  while (::send(fd, text.data(), text.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

std::optional<nlohmann::json> receive_packet(int fd) {
  std::string text(longest + 4096, '\0');
  ssize_t n = 0;
  while ((n = recv(fd, text.data(), text.size(), 0)) < 0 && errno == EINTR) {
  }
  if (n <= 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(n));
  auto packet = nlohmann::json::parse(text, nullptr, false);
  if (!packet.is_object()) throw BackendError(broken);
  return packet;
}

/// What `read` makes of a packet; BackendError when the packet lacks something.
auto read_packet(const auto& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception&) {
    throw BackendError(broken);
  }
}

}  // namespace

void send(int fd, const Assignment& a) {
  send_packet(fd, {{"rank", a.rank},
                   {"world_size", a.world_size},
                   {"local_rank", a.local_rank},
                   {"local_world_size", a.local_world_size},
                   {"address", a.address},
                   {"port", a.port},
                   {"start", a.start},
                   {"began_at", a.began_at},
                   {"first", a.first},
                   {"resume_from", a.resume_from},
                   {"set", a.set},
                   {"over", a.over}});
}

void send(int fd, const Report& report) {
  send_packet(fd, {{"kind", name_of(report.kind)},
                   {"text", report.text.substr(0, longest / 8)},
                   {"step", report.step},
                   {"shares", report.shares},
                   {"rank", report.rank},
                   {"silent", report.silent}});
}

std::optional<Assignment> receive_assignment(int fd) {
  const auto packet = receive_packet(fd);
  if (!packet) return std::nullopt;
  return read_packet([&] {
    return Assignment{.rank = packet->at("rank"),
                      .world_size = packet->at("world_size"),
                      .local_rank = packet->at("local_rank"),
                      .local_world_size = packet->at("local_world_size"),
                      .address = packet->at("address"),
                      .port = packet->at("port"),
                      .start = packet->at("start"),
                      .began_at = packet->at("began_at"),
                      .first = packet->at("first"),
                      .resume_from = packet->at("resume_from"),
                      .set = packet->at("set"),
                      .over = packet->at("over")};
  });
}

std::optional<Report> receive_report(int fd) {
  const auto packet = receive_packet(fd);
  if (!packet) return std::nullopt;
  const auto kind = read_packet([&] { return from_name<ReportKind>(packet->value("kind", "")); });
  if (!kind) throw BackendError(broken);
  return read_packet([&] {
    return Report{.kind = *kind,
                  .text = packet->value("text", ""),
                  .step = packet->value("step", std::int64_t{0}),
                  .shares = packet->value("shares", std::vector<int>{}),
                  .rank = packet->value("rank", -1),
                  .silent = packet->value("silent", 0.0)};
  });
}

std::string Agent::value(int line, int listener, int output, bool stands_by) {
  return fmt::format("{},{},{},{}", line, listener, output, stands_by ? 1 : 0);
}

std::optional<Agent> Agent::of_process(const Variables& look_up) {
  const auto text = look_up(variable);
  if (!text) return std::nullopt;
  std::array<int, 4> numbers = {};
  if (std::sscanf(text->c_str(), "%d,%d,%d,%d", numbers.data(), &numbers[1], &numbers[2],
                  &numbers[3]) != 4)
    throw InputError(fmt::format("environment variable {}: \"{}\" is not what a launcher sets",
                                 variable, *text));
  Agent agent;
  unsetenv(variable);
  std::signal(drain_signal, SIG_IGN);  // until training listens to it
  agent.line_ = Fd(numbers[0]);
  agent.listener_ = Fd(numbers[1]);
  agent.output_ = Fd(numbers[2]);
  agent.stands_by_ = numbers[3] != 0;
  return agent;
}

std::optional<Assignment> Agent::next(const Report& report) const {
  tell(report);
  std::optional<Assignment> assignment = receive_assignment(line_.get());
  if (assignment && assignment->over) return std::nullopt;
  return assignment;
}

Environment Agent::environment_of(const Assignment& a) const {
  std::cout.flush();
  const bool first = a.rank == 0;
  const Fd none(first ? -1 : open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(first ? output_.get() : none.get(), STDOUT_FILENO);
  name_process(a.rank);
  return {.rank = a.rank,
          .world_size = a.world_size,
          .local_rank = a.local_rank,
          .local_world_size = a.local_world_size,
          .master_address = a.address,
          .master_port = a.port,
          .launcher = "rehearse",
          .listener = first ? fcntl(listener_.get(), F_DUPFD_CLOEXEC, 3) : -1,
          .secret = secret_of(),
          .start = a.start,
          .began_at = a.began_at};
}

}  // namespace rehearse::runtime
