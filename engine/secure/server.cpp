#include "engine/secure/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/secure/wire.h"

namespace rehearse::secure {

Server::Server(const Group& group, std::vector<double> weights)
    : group_(group),
      weights_(std::move(weights)),
      sum_(static_cast<std::size_t>(group.settings.elements)) {}

void Server::take(Id client, const Message& message) {
  switch (static_cast<Round>(round_)) {
    case Round::advertise: {
      Reader reader(message);
      Keys& keys = keys_[client];
      keys.mask = reader.key();
      keys.seal = reader.key();
      reader.end();
      break;
    }
    case Round::share:
      take_shares(client, message);
      break;
    case Round::mask:
      take_levels(message);
      break;
    case Round::unmask:
      take_opened(client, message);
      break;
  }
  here_.push_back(client);
}

void Server::take_shares(Id client, const Message& message) {
  Reader reader(message);
  while (!reader.done()) {
    const Id to = reader.id();
    const auto sealed = reader.bytes(sealed_bytes);
    put(sealed_[to][client], sealed);
  }
}

void Server::take_levels(const Message& message) {
  if (message.size() != sum_.size() * sizeof(std::uint32_t))
    throw BackendError("secure aggregation: masked levels of another length");
  for (std::size_t i = 0; i < sum_.size(); ++i) {
    std::uint32_t level = 0;
    std::memcpy(&level, message.data() + i * sizeof level, sizeof level);
    sum_[i] += level;
  }
}

void Server::take_opened(Id client, const Message& message) {
  Reader reader(message);
  opened_[client].emplace_back(client, reader.key());
  for (const Id owner : shared_near(client)) opened_[owner].emplace_back(client, reader.key());
  reader.end();
}

std::vector<Id> Server::shared_near(Id client) const {
  std::vector<Id> out;
  std::ranges::set_intersection(group_.neighbours[client], shared_, std::back_inserter(out));
  return out;
}

std::map<Id, Message> Server::close() {
  std::ranges::sort(here_);
  if (static_cast<Round>(round_) == Round::share) shared_ = here_;
  if (static_cast<Round>(round_) == Round::mask) counted_ = here_;
  if (static_cast<Round>(round_) == Round::unmask) unmask();
  std::map<Id, Message> out;
  for (const Id client : here_) out[client] = message_for(client);
  here_.clear();
  ++round_;
  return out;
}

Message Server::message_for(Id client) const {
  Message out;
  switch (static_cast<Round>(round_)) {
    case Round::advertise:
      for (const Id other : group_.neighbours[client])
        if (const auto keys = keys_.find(other); keys != keys_.end()) {
          put(out, other);
          put(out, keys->second.mask);
          put(out, keys->second.seal);
        }
      break;
    case Round::share:
      for (const Id other : shared_near(client)) {
        put(out, other);
        put(out, sealed_.at(client).at(other));
      }
      break;
    case Round::mask:
      for (const Id other : shared_near(client))
        out.push_back(std::ranges::binary_search(counted_, other) ? 1 : 0);
      break;
    case Round::unmask:
      out = mean_;
      break;
  }
  return out;
}

Key Server::opened(Id owner, const char* what) const {
  const auto shares = opened_.find(owner);
  const std::size_t found = shares == opened_.end() ? 0 : shares->second.size();
  const auto needed = static_cast<std::size_t>(group_.settings.threshold);
  if (found < needed)
    throw BackendError(fmt::format("the {} of client {} has {} shares, and {} are needed", what,
                                   owner, found, needed));
  return join(std::span(shares->second).first(needed));
}

void Server::open_masks() {
  for (const Id client : counted_) masks_.push_back({opened(client, "self mask"), true});
  for (const Id client : shared_) {
    if (std::ranges::binary_search(counted_, client)) continue;
    const KeyPair pair = pair_of(opened(client, "key"));
    if (pair.open != keys_.at(client).mask)
      throw BackendError(fmt::format("the shares of client {}'s key open another key", client));
    for (const Id other : shared_near(client))
      if (std::ranges::binary_search(counted_, other))
        masks_.push_back({agreed_key(pair, keys_.at(other).mask), client > other});
  }
}

void Server::take_out(std::span<std::uint32_t> sum, std::int64_t first) const {
  for (const auto& [key, subtract] : masks_) add_mask(sum, key, subtract, first);
}

void Server::unmask() {
  open_masks();
  take_out(sum_, 0);
  double weights = 0;
  for (const Id client : counted_) weights += weights_[client];
  const std::vector<float> mean =
      mean_of(sum_, static_cast<int>(counted_.size()), weights, group_.settings.ring);
  mean_.resize(mean.size() * sizeof(float));
  std::memcpy(mean_.data(), mean.data(), mean_.size());
}

}  // namespace rehearse::secure
