// A sum of numbers of all clients on one server, of which the server learns nothing else
// (engine/secure), as ops of a training program. Nobody leaves: a client that is late adds zeros,
// and one that dies ends the step, as in every method.
//
//   client   secure   advertise | share_secrets | mask ... mask | open_shares
//            push.0     gather keys | gather shares | reduce levels ... | gather shares of masks
//            pull.0        scatter keys | scatter shares | scatter who stayed |
//   server   secure          relay_keys | relay_shares | tell_stayed | unmask ... unmask
//
// Keys and shares need nothing of the step, so they are exchanged beside its passes.
#pragma once
#include "engine/methods/lowering/served.h"
#include "engine/secure/group.h"

namespace rehearse::methods {

/// The plan's secure sum of so many numbers of each client. `seed`: of the order of its ring.
/// Throws Refused when its settings protect nothing.
secure::Group secure_group(const plan::Plan& plan, std::int64_t elements, std::uint64_t seed = 0);
/// What the program says of it.
program::SecureSum secure_sum(const secure::Group& group);

/// What both sides of a secure sum have.
class SecureSide {
 protected:
  SecureSide(program::Program& program, const plan::Plan& plan, program::RoleBuilder& role,
             int kinds, int parts, program::Layout layout, int shift, program::When when);
  /// A buffer for the messages of all members (or this member's) of so many bytes each.
  Id messages(const char* name, std::int64_t bytes);
  /// A kernel that reads `message` (none: nothing) and writes `target`.
  void kernel(program::KernelKind kind, Id message, Id target);
  bool client() const { return layout_.own != 0; }
  void move(program::Move move, program::Ref ref);
  void gather(Id messages);
  void scatter(Id messages);

  program::Program& program_;
  const plan::Plan& plan_;
  program::RoleBuilder& role_;
  int kinds_, parts_;
  program::Layout layout_;  // of messages
  int shift_;
  program::When when_;
  secure::ClientTraffic bytes_ = {};  // of each client's messages
  std::int64_t first_ = 0;            // the first number of the next piece
};

class SecureClient : SecureSide {
 public:
  /// Exchanges keys and shares.
  SecureClient(Stage& stage, int shift, program::When when);
  /// Adds scale x `source`, the client's numbers in the bucket, to the sum.
  void push(const Bucket& bucket, program::Ref source, double scale);
  /// After the last push: opens the masks.
  void open();

 private:
  Id shares_ = none;
};

class SecureServer : SecureSide {
 public:
  SecureServer(Server& server, program::When when);
  /// Receives the sum of a bucket's levels.
  void add(const Bucket& bucket);
  void open();
  /// After `open`, in the order of the sums: the bucket's sum / scale, in fp32.
  Id unmasked(const Bucket& bucket, double scale);

 private:
  Id opened_ = none, last_ = none;
};

}  // namespace rehearse::methods
