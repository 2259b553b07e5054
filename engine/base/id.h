// Indices into tables: ranks, devices, segments, ops and whatever else is counted from 0.
#pragma once
#include <cstdint>

namespace rehearse {

using Id = std::uint32_t;
inline constexpr Id none = ~Id{0};  // no entry of the table

}  // namespace rehearse
