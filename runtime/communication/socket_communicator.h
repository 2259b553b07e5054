// A communicator over our own sockets, which plays the schedules of engine/collectives. One thread
// overlaps the sends and receives of a round (poll). What is to be added arrives in pieces that fit
// the cache, so no receive buffer of the payload's size is needed:
//
//   receive and store:  socket ------------------------------------> tensor
//   receive and add:    socket --> landing buffer (256 KiB) -- += --> tensor
//
// The barrier is by dissemination (Hensgen, Finkel and Manber 1988), ceil(log2 n) rounds; for 4
// members:
//
//   round   distance   member 0 sends to   1 to   2 to   3 to     each then knows of
//     0        1              1              2      3      0       1 other
//     1        2              2              3      0      1       3 others
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/collectives/schedule.h"
#include "runtime/communication/communicator.h"
#include "runtime/communication/data_frame.h"
#include "runtime/communication/switchboard.h"

namespace rehearse::runtime {

class SocketCommunicator : public Communicator {
 public:
  /// `node_of`: the node of each member. `patience`: the longest time without a byte while the
  /// control plane blames nobody.
  SocketCommunicator(Switchboard& switchboard, const Control& control, std::string channel,
                     std::vector<Id> ranks, int member, std::vector<Id> node_of, Seconds patience);
  ~SocketCommunicator() override;

  int prepare(const CollectiveSpec& spec) override;
  void run(int handle, void* source, void* target) override;
  void send(Buffer buffer, int to) override;
  void recv(Buffer buffer, int from) override;
  void exchange(Buffer out, int to, Buffer in, int from) override;
  void barrier() override;
  Traffic traffic() const override;
  std::int64_t scratch_bytes() const override;

  /// Plays a schedule in place on a whole tensor.
  void play(const collectives::Schedule& schedule, Buffer whole);

 private:
  struct Connection {  // the connection to or from one peer
    ByteStream stream = {};
    std::uint32_t sequence = 0;
  };
  struct Piece {  // one transfer of a schedule, as this member sees it, in bytes
    int peer = 0;
    bool receive = false, add = false;
    std::int64_t begin = 0, end = 0;
  };
  struct Prepared {
    CollectiveSpec spec = {};
    std::vector<Piece> pieces = {};
    std::vector<std::size_t> rounds = {};  // the end of each round in `pieces`
  };
  struct Active;

  Connection& line(bool receive, int peer);
  Prepared flatten(const collectives::Schedule& schedule, const CollectiveSpec& spec) const;
  void play(const Prepared& prepared, std::byte* source, std::byte* target);
  void move_all(std::span<Active> active, const CollectiveSpec* spec);
  ssize_t move(Active& active, std::span<iovec> parts, const CollectiveSpec* spec) const;
  bool advance(Active& active, const CollectiveSpec* spec);
  void wait_for_any(std::span<const Active> active, Deadline since, const CollectiveSpec* spec);
  std::string place(const Active& active, const CollectiveSpec* spec) const;
  [[noreturn]] void throw_broken(const Active& active, const std::string& what,
                                 const CollectiveSpec* spec) const;
  /// Closes the connection, since the other end has sent something broken, and throws.
  [[noreturn]] void refuse(Active& active, const std::string& what,
                           const CollectiveSpec* spec) const;
  std::byte* own_part(const CollectiveSpec& spec, std::byte* whole) const;
  std::int64_t own_bytes(const CollectiveSpec& spec) const;

  Switchboard& switchboard_;
  const Control& control_;
  std::uint64_t key_;
  std::vector<Id> node_of_;
  Seconds patience_;
  std::vector<Connection> out_, in_;
  std::vector<Prepared> prepared_ = {};
  std::vector<Active> active_;  // for collectives; send and recv keep theirs on the stack
  std::vector<std::byte> landing_ = {}, scratch_ = {};
  std::atomic<std::int64_t> sent_ = 0, received_ = 0;
};

}  // namespace rehearse::runtime
