#include "runtime/communication/packet_exchange.h"

#include <cstring>

#include "engine/program/packets.h"
#include "runtime/kernels/sparsify.h"

namespace rehearse::runtime {

PacketExchange::PacketExchange(Communicator& communicator, program::Move move,
                               const program::Kernel& kernel, std::int64_t count, int root)
    : communicator_(communicator),
      move_(move),
      kernel_(kernel),
      root_(root),
      handle_(communicator.prepare(
          {.move = move, .dtype = program::DType::u8, .elements = 4 * count, .root = root})),
      counts_(static_cast<std::size_t>(count)) {}

/// The part of a packet after its count.
Buffer PacketExchange::body(std::byte* packets, std::int64_t index) const {
  std::byte* const packet = packets + index * packet_room(kernel_);
  return {.data = packet + packet_header(kernel_.selector),
          .elements = packet_bytes(kernel_.of, entries_in(kernel_, packet), kernel_.coding),
          .dtype = program::DType::u8};
}

void PacketExchange::run(std::byte* source, std::byte* target) {
  const std::int64_t room = packet_room(kernel_), member = communicator_.member();
  const auto count = static_cast<std::int64_t>(counts_.size());
  const bool gathers = move_ == program::Move::all_gather;
  if (gathers && source != target + member * room)
    std::memcpy(target + member * room, source, static_cast<std::size_t>(room));
  if (!gathers && member == root_ && source != target)
    std::memcpy(target, source, static_cast<std::size_t>(count * room));
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(&counts_[static_cast<std::size_t>(i)], target + i * room, 4);
  communicator_.run(handle_, gathers ? &counts_[static_cast<std::size_t>(member)] : counts_.data(),
                    counts_.data());
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(target + i * room, &counts_[static_cast<std::size_t>(i)], 4);
  if (gathers)
    gather(target);
  else
    broadcast(target);
}

/// In round r of the ring a member passes on the packet of the member r places before it.
void PacketExchange::gather(std::byte* target) {
  const int n = communicator_.size(), me = communicator_.member();
  for (int round = 0; round + 1 < n; ++round)
    communicator_.exchange(body(target, (me - round + n) % n), (me + 1) % n,
                           body(target, (me - round - 1 + n) % n), (me - 1 + n) % n);
}

void PacketExchange::broadcast(std::byte* target) {
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(counts_.size()); ++i)
    for (int member = 0; member < communicator_.size(); ++member) {
      if (member == root_) continue;
      if (communicator_.member() == root_) communicator_.send(body(target, i), member);
      if (communicator_.member() == member) communicator_.recv(body(target, i), root_);
    }
}

}  // namespace rehearse::runtime
