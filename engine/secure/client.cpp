#include "engine/secure/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/secure/wire.h"

namespace rehearse::secure {

Client::Client(const Group& group, Id me) : group_(group), me_(me) {}

void Client::turn(Round round) {
  if (done_ != static_cast<int>(round))
    throw BackendError(
        fmt::format("client {} was asked out of turn for round {}", me_, name_of(round)));
  ++done_;
}

Message Client::advertise() {
  turn(Round::advertise);
  mask_number_ = random_secret_number();
  mask_pair_ = pair_of(mask_number_);
  seal_pair_ = pair_of(random_secret_number());
  Message out;
  put(out, mask_pair_.open);
  put(out, seal_pair_.open);
  return out;
}

Message Client::share(const Message& keys) {
  turn(Round::share);
  const std::vector<Id>& near = group_.neighbours[me_];
  Reader reader(keys);
  while (!reader.done()) {
    const Id other = reader.id();
    if (!std::ranges::binary_search(near, other))
      throw BackendError(
          fmt::format("client {} got a key of {}, which is no neighbour", me_, other));
    Peer& peer = peers_[other];
    peer.mask_key = agreed_key(mask_pair_, reader.key());
    peer.seal_key = agreed_key(seal_pair_, reader.key());
  }
  const int threshold = group_.settings.threshold;
  std::vector<Id> holders{me_};
  for (const auto& [other, peer] : peers_) holders.push_back(other);
  if (holders.size() < static_cast<std::size_t>(threshold))
    throw BackendError(fmt::format("client {} has {} holders of shares, and {} are needed", me_,
                                   holders.size(), threshold));
  self_mask_ = random_secret_number();
  const std::vector<Key> of_pair = split(mask_number_, holders, threshold);
  const std::vector<Key> of_self = split(self_mask_, holders, threshold);
  own_share_ = of_self[0];
  Message out;
  for (std::size_t i = 1; i < holders.size(); ++i) {
    put(out, holders[i]);
    put(out, seal({.pair = of_pair[i], .self = of_self[i]}, peers_.at(holders[i]).seal_key, me_,
                  holders[i]));
  }
  return out;
}

void Client::take_shares(const Message& shares) {
  turn(Round::mask);
  std::map<Id, Peer> here;
  Reader reader(shares);
  while (!reader.done()) {
    const Id other = reader.id();
    const auto peer = peers_.find(other);
    const auto sealed = reader.bytes(sealed_bytes);
    const std::optional<Shares> opened =
        peer == peers_.end() ? std::nullopt : unseal(sealed, peer->second.seal_key, other, me_);
    if (!opened)
      throw BackendError(
          fmt::format("client {} cannot open the shares that are said to be of {}", me_, other));
    here[other] = peer->second;
    here[other].shares = *opened;
  }
  peers_ = std::move(here);
  if (static_cast<int>(peers_.size()) + 1 < group_.settings.threshold)
    throw BackendError(
        fmt::format("client {} got shares of {} others, too few for a sum", me_, peers_.size()));
}

void Client::hide(std::span<std::uint32_t> levels, std::int64_t first) const {
  if (round() != Round::unmask)
    throw BackendError(fmt::format("client {} has no masks in round {}", me_, name_of(round())));
  add_mask(levels, self_mask_, false, first);
  for (const auto& [other, peer] : peers_) add_mask(levels, peer.mask_key, other < me_, first);
}

Message Client::mask(const Message& shares, std::span<const std::uint32_t> levels) {
  take_shares(shares);
  std::vector<std::uint32_t> masked(levels.begin(), levels.end());
  hide(masked, 0);
  Message out(masked.size() * sizeof(std::uint32_t));
  std::memcpy(out.data(), masked.data(), out.size());
  return out;
}

Message Client::unmask(const Message& stayed) {
  turn(Round::unmask);
  Reader reader(stayed);
  std::vector<bool> there;
  while (!reader.done()) there.push_back(reader.bytes(1)[0] != 0);
  if (there.size() != peers_.size())
    throw BackendError(fmt::format("client {} was told of {} neighbours and has {}", me_,
                                   there.size(), peers_.size()));
  if (std::ranges::count(there, true) + 1 < group_.settings.threshold)
    throw BackendError(
        fmt::format("client {} was told that {} neighbours stayed: too few for a sum", me_,
                    std::ranges::count(there, true)));
  Message out;
  put(out, own_share_);
  std::size_t at = 0;
  for (const auto& [other, peer] : peers_)
    put(out, there[at++] ? peer.shares.self : peer.shares.pair);
  return out;
}

std::vector<float> read_mean(const Message& answer) {
  std::vector<float> out(answer.size() / sizeof(float));
  std::memcpy(out.data(), answer.data(), out.size() * sizeof(float));
  return out;
}

}  // namespace rehearse::secure
