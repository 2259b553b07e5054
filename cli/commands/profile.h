// What `rehearse profile` is asked for, and its ways to a profile: measured between real ranks, or
// played on a model of a cluster.
#pragma once
#include <string>
#include <vector>

#include "cli/console/context.h"
#include "engine/costs/profile.h"

namespace rehearse::cli {

struct ProfileOptions {
  std::string output = {}, model = "gpt-demo", optimizer = "adamw", precision = "fp32";
  std::string cluster = {}, ranks_on = {};
  std::vector<std::string> merge = {};
  std::vector<int> samples = {1, 2, 4}, tp = {1};
  int nproc = 0, seq_len = 0, threads = 0;
};

/// On SimGrid; the command line's --set may disturb it (disturb.link_jitter=0.1).
costs::Profile profile_cluster(const Context& context, const ProfileOptions& options);

/// Writes it where -o says and prints what it holds.
void write_profile(const Context& context, const ProfileOptions& options,
                   const costs::Profile& profile);

}  // namespace rehearse::cli
