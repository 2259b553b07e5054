// `rehearse profile` on real ranks, without --cluster.
#pragma once
#include "cli/commands/profile/profile.h"

namespace rehearse::cli {

/// Starts the ranks (--nproc), or runs as one of them. Rank 0 writes the profile. Returns the exit
/// status.
int profile_ranks(const Context& context, const ProfileOptions& options, ProfileWriter* write);

}  // namespace rehearse::cli
