// Collectives of packets that are as long as they happen to be: how many entries each holds goes
// ahead, then every packet goes with the bytes it has. Slots of memory are equal, packet_room
// apart.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/program/program.h"
#include "runtime/communication/communicator.h"

namespace rehearse::runtime {

class PacketExchange {
 public:
  /// `count` packets in all: in an all-gather one of each member, in a broadcast all from `root`.
  PacketExchange(Communicator& communicator, program::Move move, const program::Kernel& kernel,
                 std::int64_t count, int root);

  /// all_gather: a member's packet -> all packets. broadcast: the root's packets -> the same.
  /// Throws BackendError when a peer's count does not fit.
  void run(std::byte* source, std::byte* target);

 private:
  void gather(std::byte* target);
  void broadcast(std::byte* target);
  Buffer body(std::byte* packets, std::int64_t index) const;

  Communicator& communicator_;
  program::Move move_;
  program::Kernel kernel_;
  int root_, handle_;
  std::vector<std::uint32_t> counts_;
};

}  // namespace rehearse::runtime
