// `rehearse profile` between real ranks.
#pragma once
#include "cli/commands/profile.h"

namespace rehearse::cli {

/// Starts ranks, or is one of them. Returns the exit status; the profile is written by rank 0.
int profile_ranks(const Context& context, const ProfileOptions& options);

}  // namespace rehearse::cli
