// What a file may say of a quantity. Each range holds every machine there is with room to spare,
// and ends where results would no longer be finite numbers: what is beyond is a slip of the pen.
#pragma once
#include "engine/base/config.h"

namespace rehearse::limits {

/// From a kilobyte a second to a thousand times the fastest memory.
constexpr Limits bandwidth = between(1e3, 1e16);
/// From a thousand operations a second to a million times the fastest device.
constexpr Limits rate = between(1e3, 1e21);
/// A rate that a device may not have.
constexpr Limits maybe_rate = between(0, 1e21);
/// Of a link, a launch, a step: at most an hour.
constexpr Limits latency = between(0, 3600);
/// Of one device, from a kilobyte to an exabyte.
constexpr Limits memory = between(1e3, 1e18);
constexpr Limits reserve = between(0, 1e18);
/// A part of a peak that is reached.
constexpr Limits efficiency = between(1e-6, 1);
/// How many times as long something takes.
constexpr Limits factor = between(1e-6, 1e6);
/// Of one device, up to a megawatt.
constexpr Limits power = between(0, 1e6);
/// How long a run waits: from a millisecond to a month.
constexpr Limits patience = between(1e-3, 2678400);

}  // namespace rehearse::limits
