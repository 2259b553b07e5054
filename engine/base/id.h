// Id: an index into a table of ranks, devices, segments, ops or anything else counted from 0.
#pragma once
#include <cstdint>

namespace rehearse {

using Id = std::uint32_t;
inline constexpr Id none = ~Id{0};  // no entry of the table

}  // namespace rehearse
