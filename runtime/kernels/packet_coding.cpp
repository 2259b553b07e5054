// Reads and writes packets as bytes (sizes: engine/program/packets.h). A packet holds k of n
// entries; every number lies at a multiple of its own size.
//
//   [count u32] [k values, f32] [places]    the count only if a threshold selected
//
//   places:  index32   k x u32: the index
//            bitmap    ceil(n / 8) bytes: bit i % 8 of byte i / 8 is 1 if entry i is there
//            delta16   a u32 for each block of 65,536 entries: how many of the k it has;
//                      then k x u16: the offset in the block
//            values    none: the reader draws the same entries
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "engine/base/errors.h"
#include "runtime/kernels/sparsify.h"

namespace rehearse::runtime {
namespace {

[[noreturn]] void damaged(const std::string& why) {
  throw BackendError("a sparse gradient is damaged: " + why);
}

template <class T>
T load(const std::byte* at) {
  T value = {};
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Calls add(index) for every entry, in order. `drawn`: the entries of Coding::values. Throws
/// BackendError when the packet contradicts itself.
template <class Add>
void read_indices(const program::Kernel& kernel, const std::byte* at, std::int64_t count,
                  const std::uint32_t* drawn, Add add) {
  switch (kernel.coding) {
    case program::Coding::index32:
      for (std::int64_t i = 0; i < count; ++i) add(load<std::uint32_t>(at + 4 * i));
      return;
    case program::Coding::bitmap: {
      std::int64_t found = 0;
      const std::int64_t bytes = (kernel.of + 7) / 8;
      for (std::int64_t begin = 0; begin < bytes; begin += 8) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, at + begin,
                    static_cast<std::size_t>(std::min<std::int64_t>(8, bytes - begin)));
        found += std::popcount(bits);
        if (found > count) damaged("its bitmap marks more entries than it holds");
        for (; bits != 0; bits &= bits - 1) add(8 * begin + std::countr_zero(bits));
      }
      if (found != count)
        damaged("its bitmap marks " + std::to_string(found) + " entries of " +
                std::to_string(count));
      return;
    }
    case program::Coding::delta16: {
      const std::int64_t blocks = (kernel.of + program::delta_block - 1) / program::delta_block;
      const std::byte* offsets = at + 4 * blocks;
      std::int64_t left = count;
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t here = load<std::uint32_t>(at + 4 * block);
        if (here > left) damaged("its blocks hold more entries than it has");
        for (std::int64_t i = 0; i < here; ++i, offsets += 2)
          add(block * program::delta_block + load<std::uint16_t>(offsets));
        left -= here;
      }
      if (left != 0) damaged("its blocks hold fewer entries than it has");
      return;
    }
    case program::Coding::values:
      for (std::int64_t i = 0; i < count; ++i) add(drawn[i]);
  }
}

/// Adds the entries of a packet to `target`, which holds entries [begin, end) of the gradient.
void add_packet(const program::Kernel& kernel, const std::byte* packet, const std::uint32_t* drawn,
                std::int64_t begin, std::int64_t end, float* target) {
  const std::int64_t count = entries_in(kernel, packet);
  const std::byte* value = packet + packet_header(kernel.selector);
  const std::byte* places = value + 4 * count;
  const auto size = static_cast<std::uint64_t>(end - begin);
  const bool part = begin > 0 || end < kernel.of;
  const auto add = [&](std::int64_t place) {
    if (place >= kernel.of)
      damaged("it names element " + std::to_string(place) + " of " + std::to_string(kernel.of));
    const auto at = static_cast<std::uint64_t>(place - begin);
    if (!part || at < size) target[at] += load<float>(value);
    value += 4;
  };
  read_indices(kernel, places, count, drawn, add);
}

}  // namespace

std::int64_t entries_in(const program::Kernel& kernel, const std::byte* packet) {
  if (kernel.selector != program::Selector::threshold) return kernel.keep;
  const std::int64_t count = load<std::uint32_t>(packet);
  const std::int64_t most = packet_capacity(kernel.of, kernel.keep, kernel.selector);
  if (count > most)
    damaged("it says that it holds " + std::to_string(count) + " entries, at most " +
            std::to_string(most) + " fit");
  return count;
}

void write_packet(const program::Kernel& kernel, const float* values, const std::uint32_t* indices,
                  std::int64_t count, std::byte* packet) {
  if (kernel.selector == program::Selector::threshold) {
    const auto said = static_cast<std::uint32_t>(count);
    std::memcpy(packet, &said, sizeof said);
  }
  packet += packet_header(kernel.selector);
  const auto bytes = static_cast<std::size_t>(4 * count);
  if (count > 0) std::memcpy(packet, values, bytes);
  std::byte* at = packet + bytes;
  switch (kernel.coding) {
    case program::Coding::index32:
      if (count > 0) std::memcpy(at, indices, bytes);
      return;
    case program::Coding::bitmap:
      std::memset(at, 0, static_cast<std::size_t>((kernel.of + 7) / 8));
      for (std::int64_t i = 0; i < count; ++i)
        at[indices[i] / 8] |= static_cast<std::byte>(1U << (indices[i] % 8));
      return;
    case program::Coding::delta16: {
      const std::int64_t blocks = (kernel.of + program::delta_block - 1) / program::delta_block;
      std::byte* offsets = at + 4 * blocks;
      std::int64_t i = 0;
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t first = i, end = (block + 1) * program::delta_block;
        for (; i < count && indices[i] < end; ++i, offsets += 2) {
          const auto offset = static_cast<std::uint16_t>(indices[i]);
          std::memcpy(offsets, &offset, sizeof offset);
        }
        const auto here = static_cast<std::uint32_t>(i - first);
        std::memcpy(at + 4 * block, &here, sizeof here);
      }
      return;
    }
    case program::Coding::values:
      return;
  }
}

void select_nothing(const program::Kernel& kernel, std::byte* packet) {
  if (kernel.selector == program::Selector::threshold)
    return write_packet(kernel, nullptr, nullptr, 0, packet);
  const std::vector<float> zeros(static_cast<std::size_t>(kernel.keep));
  std::vector<std::uint32_t> first(zeros.size());
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<std::uint32_t>(i);
  write_packet(kernel, zeros.data(), first.data(), kernel.keep, packet);
}

void scatter_add(const program::Kernel& kernel, const SelectStep& step, const std::byte* packets,
                 std::int64_t count, std::int64_t begin, std::int64_t end, float* target,
                 SelectScratch& scratch) {
  std::fill_n(target, end - begin, 0.0F);
  const std::int64_t room = packet_room(kernel);
  if (kernel.coding == program::Coding::values) {
    scratch.fit(kernel);
    draw_entries(kernel, step, scratch.indices.data());
  }
  for (std::int64_t i = 0; i < count; ++i)
    add_packet(kernel, packets + i * room, scratch.indices.data(), begin, end, target);
  const float scale = step.gradients.scale();
  if (scale == 1) return;
  for (std::int64_t i = 0; i < end - begin; ++i) target[i] *= scale;
}

}  // namespace rehearse::runtime
