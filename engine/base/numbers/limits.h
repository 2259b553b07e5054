// The ranges that quantities in files may have. Each range holds every existing machine with room
// to spare, and keeps all results finite. A value outside it is most likely a typing error.
#pragma once
#include "engine/base/files/config.h"

namespace rehearse::limits {

/// Bytes per second, up to a thousand times the fastest memory.
constexpr Limits bandwidth = between(1e3, 1e16);
/// The same, or 0: not stated.
constexpr Limits maybe_bandwidth = between(0, 1e16);
/// FLOP/s, up to a million times the fastest device.
constexpr Limits rate = between(1e3, 1e21);
/// FLOP/s of a number format that a device may lack; 0: not supported.
constexpr Limits maybe_rate = between(0, 1e21);
/// Seconds of a link, a launch or a step, up to an hour.
constexpr Limits latency = between(0, 3600);
/// Bytes of one device, from a kilobyte to an exabyte.
constexpr Limits memory = between(1e3, 1e18);
constexpr Limits reserve = between(0, 1e18);
/// The fraction of a peak rate that is reached.
constexpr Limits efficiency = between(1e-6, 1);
/// A part of a whole, a probability.
constexpr Limits part = between(0, 1);
/// A multiple of a duration.
constexpr Limits factor = between(1e-6, 1e6);
/// Watts of one device, up to a megawatt.
constexpr Limits power = between(0, 1e6);
/// Seconds that a run waits, from a millisecond to a month.
constexpr Limits patience = between(1e-3, 2678400);
/// Seconds of a run with failures, from a minute to ten years.
constexpr Limits long_run = between(60, 10 * 365 * 86400.0);

}  // namespace rehearse::limits
