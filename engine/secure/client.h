// A client of a secure sum. Each call takes the server's answer of the round before and returns the
// message of the next round; a call out of turn throws. A message that is malformed, or an answer
// by which the client would give away too much, is a BackendError.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/secure/group.h"
#include "engine/secure/keys.h"

namespace rehearse::secure {

class Client {
 public:
  /// `group` must outlive the client.
  Client(const Group& group, Id me);

  Message advertise();
  Message share(const Message& keys);
  /// `levels`: as many as the group's elements.
  Message mask(const Message& shares, std::span<const std::uint32_t> levels);
  /// The same piece by piece: takes the shares, then adds the masks to levels from the client's
  /// number `first` on, to each once.
  void take_shares(const Message& shares);
  void hide(std::span<std::uint32_t> levels, std::int64_t first) const;
  Message unmask(const Message& stayed);
  /// The round whose message is next.
  Round round() const { return static_cast<Round>(done_); }

 private:
  struct Peer {
    Key mask_key = {}, seal_key = {};  // that both agree on
    Shares shares = {};                // of the peer's secrets
  };
  void turn(Round round);

  const Group& group_;
  Id me_;
  int done_ = 0;
  Key mask_number_ = {}, self_mask_ = {}, own_share_ = {};
  KeyPair mask_pair_ = {}, seal_pair_ = {};
  std::map<Id, Peer> peers_ = {};  // neighbours that are still there
};

/// The mean in the server's last answer.
std::vector<float> read_mean(const Message& answer);

}  // namespace rehearse::secure
