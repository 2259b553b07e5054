#include "engine/methods/lowering/secure_round.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/methods/passes/passes.h"
#include "engine/program/role_builder.h"

namespace rehearse::methods {
namespace {

using program::Mode;
using program::Slot;

/// The view of a message in a role.
Id message_view(program::RoleBuilder& role, const std::string& name, std::int64_t bytes) {
  return role.storage({.name = name, .dtype = program::DType::u8, .elements = bytes});
}

class SecureRoundWriter {
 public:
  SecureRoundWriter(const secure::Group& group, const secure::Leaving& leaving,
                    BytesPerSecond mask_rate)
      : group_(group),
        leaving_(leaving),
        traffic_(secure::traffic_of(group, leaving)),
        mask_rate_(mask_rate.value),
        server_("server", {static_cast<Id>(leaving.size())}) {
    const int ranks = static_cast<int>(leaving.size()) + 1;
    program_ = {.method = "secure sum", .mesh = {{"rank", ranks}}, .world_size = ranks};
    up_ = program::channel(program_, "up");
    down_ = program::channel(program_, "down");
  }

  program::Program run() {
    for (Id client = 0; client < leaving_.size(); ++client) write_client(client);
    for (int round = 0; round < secure::rounds; ++round) serve(round);
    program_.roles.push_back(server_.take());
    return infer_waits({std::move(program_)});
  }

 private:
  /// Of making masks, and levels of numbers or numbers of levels.
  double seconds(std::int64_t masks) const {
    return 4.0 * static_cast<double>(group_.settings.elements * (masks + secure::masks_of_levels)) /
           mask_rate_;
  }
  /// The neighbours of a client that send in a round.
  std::int64_t near(Id client, int round) const {
    return std::ranges::count_if(group_.neighbours[client],
                                 [&](Id other) { return leaving_[other] > round; });
  }

  void write_client(Id client) {
    program::RoleBuilder role(fmt::format("client{}", client), {client});
    const secure::ClientTraffic& bytes = traffic_[client];
    const Id server = static_cast<Id>(leaving_.size());
    Id answer = none;
    const auto read_answer = [&] { return program::ref(answer, Slot::source, Mode::read); };
    for (int round = 0; round < std::min(secure::rounds, leaving_[client]); ++round) {
      const auto at = static_cast<std::size_t>(round);
      const Id sent = message_view(role, fmt::format("up{}", round), bytes.up[at]);
      std::vector<program::Ref> refs;
      if (answer != none) refs.push_back(read_answer());
      refs.push_back(program::ref(sent, Slot::target, Mode::write));
      const bool masks = static_cast<secure::Round>(round) == secure::Round::mask;
      role.op(
          "work",
          program::Pause{
              .seconds =
                  masks ? seconds(1 + near(client, static_cast<int>(secure::Round::share))) : 0},
          std::move(refs));
      role.op("to_server", program::Send{.channel = up_, .peer = server},
              {program::ref(sent, Slot::source, Mode::read)});
      answer = message_view(role, fmt::format("down{}", round), bytes.down[at]);
      role.op("from_server", program::Recv{.channel = down_, .peer = server},
              {program::ref(answer, Slot::target, Mode::write)});
    }
    if (answer != none) role.op("work", program::Pause{}, {read_answer()});
    if (leaving_[client] == 0) role.op("work", program::Pause{}, {});
    program_.roles.push_back(role.take());
  }

  void serve(int round) {
    const auto at = static_cast<std::size_t>(round);
    const std::vector<Id> here = secure::senders(leaving_, round);
    std::vector<program::Ref> refs;
    for (const Id client : here) {
      const Id got =
          message_view(server_, fmt::format("up{}.{}", round, client), traffic_[client].up[at]);
      server_.op(fmt::format("from.{}", client), program::Recv{.channel = up_, .peer = client},
                 {program::ref(got, Slot::target, Mode::write)});
      refs.push_back(program::ref(got, Slot::source, Mode::read));
    }
    std::vector<Id> answers;
    for (const Id client : here) {
      answers.push_back(message_view(server_, fmt::format("down{}.{}", round, client),
                                     traffic_[client].down[at]));
      refs.push_back(program::ref(answers.back(), Slot::target, Mode::write));
    }
    const bool unmasks = static_cast<secure::Round>(round) == secure::Round::unmask;
    server_.op("work", program::Pause{.seconds = unmasks ? seconds(opened_masks()) : 0},
               std::move(refs));
    for (std::size_t i = 0; i < here.size(); ++i)
      server_.op(fmt::format("to.{}", here[i]), program::Send{.channel = down_, .peer = here[i]},
                 {program::ref(answers[i], Slot::source, Mode::read)});
  }

  /// The masks that the server takes out of the sum.
  std::int64_t opened_masks() const {
    constexpr int mask = static_cast<int>(secure::Round::mask);
    auto out = static_cast<std::int64_t>(secure::senders(leaving_, mask).size());
    for (Id client = 0; client < leaving_.size(); ++client)
      if (leaving_[client] == mask) out += near(client, mask);
    return out;
  }

  const secure::Group& group_;
  const secure::Leaving& leaving_;
  std::vector<secure::ClientTraffic> traffic_;
  double mask_rate_ = 0;
  program::Program program_ = {};
  Id up_ = none, down_ = none;
  program::RoleBuilder server_;
};

}  // namespace

program::Program secure_round(const secure::Group& group, const secure::Leaving& leaving,
                              BytesPerSecond mask_rate) {
  return SecureRoundWriter(group, leaving, mask_rate).run();
}

}  // namespace rehearse::methods
