// The options of `rehearse profile`, and its two ways to make a profile: measurements on real ranks
// (cli/train/profile_ranks.h), or a simulation of the same measurements on a modelled cluster.
#pragma once
#include <string>
#include <vector>

#include "cli/console/context.h"
#include "engine/costs/profile.h"

namespace rehearse::cli {

struct ProfileOptions {
  std::string output = {}, model = "gpt-demo", optimizer = "adamw", precision = "fp32";
  std::string cluster = {}, ranks_on = {}, device = "auto", kind = {};
  std::vector<std::string> merge = {};
  std::vector<int> samples = {1, 2, 4}, tp = {1};
  int nproc = 0, seq_len = 0, threads = 0;
  bool no_network = false, encrypt = false;
};

/// Simulates the measurements on the cluster `options.cluster`. --set may set keys of [disturb],
/// such as disturb.link_jitter=0.1. Throws InputError when another key is set, when the cluster has
/// too many devices, or when this build has no SimGrid.
costs::Profile profile_cluster(const Context& context, const ProfileOptions& options);

/// Writes the profile to the file of -o and prints a summary.
using ProfileWriter = void(const Context& context, const ProfileOptions& options,
                           const costs::Profile& profile);

}  // namespace rehearse::cli
