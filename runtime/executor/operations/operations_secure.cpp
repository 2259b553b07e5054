// Executes the kernels of a secure sum (engine/secure): of a client, or of the server.
#include <cstring>
#include <optional>

#include "engine/secure/client.h"
#include "engine/secure/server.h"
#include "runtime/executor/operations/prepared.h"

namespace rehearse::runtime {

/// The rank's side of the sum that is under way.
struct Operations::SecureSide {
  secure::Group group = {};
  std::optional<secure::Client> client = {};
  std::optional<secure::Server> server = {};
};

void Operations::prepare_secure() {
  std::int64_t clients = 0, elements = 0;
  for (const program::Role& role : program_.roles) {
    std::int64_t masked = 0;
    for (const program::Op& op : role.ops)
      if (const auto* kernel = std::get_if<program::Kernel>(&op.work);
          kernel != nullptr && kernel->kind == program::KernelKind::mask)
        masked += elements_of(program_, role, *find(op, program::Slot::target));
    if (masked == 0) continue;
    clients += static_cast<std::int64_t>(role.ranks.size());
    elements = masked;
  }
  const program::SecureSum& wanted = program_.secure;
  secure_ = std::make_shared<SecureSide>();
  secure_->group = secure::group_of({.clients = static_cast<int>(clients),
                                     .neighbours = wanted.neighbours,
                                     .threshold = wanted.threshold,
                                     .elements = elements,
                                     .ring = {.clip = wanted.range, .levels = wanted.levels}});
}

void Operations::secure_sum(Prepared& p, const program::Kernel& work, std::int64_t step) {
  if (secure_ == nullptr) prepare_secure();
  const secure::Group& group = secure_->group;
  std::optional<secure::Client>& client = secure_->client;
  std::optional<secure::Server>& server = secure_->server;
  const auto members = static_cast<std::size_t>(group.settings.clients) + 1;
  const auto bytes_of = [](const at::Tensor& tensor) {
    return std::span(static_cast<unsigned char*>(tensor.data_ptr()), tensor.nbytes());
  };
  const auto write = [&] { return bytes_of(memory_.write(p.need(program::Slot::target), step)); };
  const auto read = [&] { return bytes_of(memory_.read(p.need(program::Slot::message), step)); };
  const auto message = [](std::span<const unsigned char> bytes) {
    return secure::Message(bytes.begin(), bytes.end());
  };
  const auto put = [&](std::span<unsigned char> place, const secure::Message& bytes) {
    if (place.size() != bytes.size())
      throw ProgramError(fmt::format("op {}: a message of {} bytes, and room for {}", p.id,
                                     bytes.size(), place.size()));
    std::ranges::copy(bytes, place.begin());
  };
  const auto take_all = [&] {
    const auto all = read();
    const std::size_t one = all.size() / members;
    for (Id sender = 0; sender + 1 < members; ++sender)
      server->take(sender, message(all.subspan(sender * one, one)));
  };
  const auto answer_all = [&] {
    const auto all = write();
    const std::size_t one = all.size() / members;
    for (const auto& [receiver, answer] : server->close())
      put(all.subspan(receiver * one, one), answer);
  };
  switch (work.kind) {
    case program::KernelKind::advertise:
      client.emplace(group, rank_);
      return put(write(), client->advertise());
    case program::KernelKind::share_secrets:
      return put(write(), client->share(message(read())));
    case program::KernelKind::open_shares:
      return put(write(), client->unmask(message(read())));
    case program::KernelKind::mask: {
      if (client->round() == secure::Round::mask) client->take_shares(message(read()));
      const at::Tensor source = memory_.read(p.need(program::Slot::source), step);
      std::vector<std::uint32_t> levels = secure::levels_of(
          std::span(source.data_ptr<float>(), static_cast<std::size_t>(source.numel())), work.scale,
          group.settings.ring);
      client->hide(levels, work.of);
      std::memcpy(write().data(), levels.data(), levels.size() * sizeof levels[0]);
      return;
    }
    case program::KernelKind::relay_keys:
      // The weights are in the levels, and the sum is divided by the scale of `unmask`.
      server.emplace(group, std::vector<double>(members - 1, 1));
      [[fallthrough]];
    case program::KernelKind::relay_shares:
      take_all();
      return answer_all();
    case program::KernelKind::tell_stayed:
      for (Id sender = 0; sender + 1 < members; ++sender) server->count(sender);
      return answer_all();
    case program::KernelKind::unmask: {
      if (!server->opened_masks()) {
        take_all();
        server->open_masks();
      }
      const at::Tensor source = memory_.read(p.need(program::Slot::source), step);
      std::vector<std::uint32_t> sum(static_cast<std::size_t>(source.numel()));
      std::memcpy(sum.data(), source.data_ptr(), source.nbytes());
      server->take_out(sum, work.of);
      const std::vector<float> mean =
          secure::mean_of(sum, group.settings.clients, work.scale, group.settings.ring);
      std::memcpy(write().data(), mean.data(), mean.size() * sizeof mean[0]);
      return;
    }
    default:
      throw ProgramError(fmt::format("op {} is no kernel of a secure sum", p.id));
  }
}

}  // namespace rehearse::runtime
