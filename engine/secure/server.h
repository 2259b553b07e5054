// The server of a secure sum: passes on keys and sealed shares, adds masked levels, and opens from
// shares exactly the masks that are left in the sum: the self masks of clients whose levels are in
// it, and what neighbours shared with clients that left after they had shared.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/secure/group.h"
#include "engine/secure/keys.h"

namespace rehearse::secure {

class Server {
 public:
  /// `weights`: by client, as for levels_of. `group` must outlive the server.
  Server(const Group& group, std::vector<double> weights);

  /// A client's message of the present round. Throws BackendError when it is malformed.
  void take(Id client, const Message& message);
  /// Ends the round: whoever sent nothing has left. Returns the answer to each client that sent.
  /// The last round makes the sum; throws BackendError when a secret has too few shares.
  std::map<Id, Message> close();

  // For sums that are kept elsewhere, piece by piece, and that this server unmasks.
  /// In the round mask, in place of `take`: the client's levels are in such a sum.
  void count(Id client) { here_.push_back(client); }
  /// Ends the last round without a sum: opens the masks, as `close` does.
  void open_masks();
  /// Takes the masks out of a piece that begins with the clients' number `first`.
  void take_out(std::span<std::uint32_t> sum, std::int64_t first) const;
  bool opened_masks() const { return !masks_.empty(); }

  const std::vector<std::uint32_t>& sum() const { return sum_; }
  /// The clients whose levels are in the sum.
  const std::vector<Id>& counted() const { return counted_; }

 private:
  struct Keys {
    Key mask = {}, seal = {};
  };
  void take_shares(Id client, const Message& message);
  void take_levels(const Message& message);
  void take_opened(Id client, const Message& message);
  /// A client's neighbours that have shared secrets.
  std::vector<Id> shared_near(Id client) const;
  Key opened(Id owner, const char* what) const;
  void unmask();
  struct Mask {
    Key key = {};
    bool subtract = false;
  };
  Message message_for(Id client) const;

  const Group& group_;
  std::vector<double> weights_;
  int round_ = 0;
  std::vector<Id> here_ = {};  // clients that have sent in this round
  std::map<Id, Keys> keys_ = {};
  std::map<Id, std::map<Id, Message>> sealed_ = {};            // [to][from]
  std::vector<Id> shared_ = {}, counted_ = {};                 // sent in rounds share and mask
  std::map<Id, std::vector<std::pair<Id, Key>>> opened_ = {};  // [owner]: holder, share
  std::vector<Mask> masks_ = {};  // that are left in the sum, and how to take them out
  std::vector<std::uint32_t> sum_ = {};
  Message mean_ = {};
};

}  // namespace rehearse::secure
