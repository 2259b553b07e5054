// Durations that options state, as texts.
#pragma once
#include <string>

#include "engine/base/files/config.h"
#include "engine/base/units.h"

namespace rehearse {

/// "54 d"
std::string days(Seconds s);
/// The duration that `option` states, as in 90s or 54d. Throws InputError that names the option
/// when the text is none or outside the limits, in seconds.
Seconds duration_of(const char* option, const std::string& text, const Limits& limits);
/// How long to wait for another program: REHEARSE_PROGRAM_TIMEOUT, as in 30m, or else ten minutes.
/// Throws InputError for a text that is no duration.
Seconds patience_with_programs();

}  // namespace rehearse
