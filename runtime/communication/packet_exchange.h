// All-gather and broadcast of packets of varying length. The entry counts are exchanged first, then
// every packet is sent with the bytes it has. In memory packets lie packet_room(kernel) bytes
// apart. The all-gather is a ring; for 3 members with packets A, B and C:
//
//   round    0 sends to 1    1 sends to 2    2 sends to 0
//     0           A               B               C
//     1           C               A               B
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/program/program.h"
#include "runtime/communication/communicator.h"

namespace rehearse::runtime {

class PacketExchange {
 public:
  /// `count` packets in all: in an all-gather one from each member, in a broadcast all from `root`.
  PacketExchange(Communicator& communicator, program::Move move, const program::Kernel& kernel,
                 std::int64_t count, int root);

  /// all_gather: `source` is this member's packet, `target` all packets by member. broadcast: both
  /// are all packets, `source` is read at the root. Throws BackendError when a peer's count does
  /// not fit.
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
