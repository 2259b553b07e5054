// `rehearse profile --cluster`: simulates the measurements of real ranks on a modelled cluster.
#ifdef REHEARSE_HAS_SIM
#include <fmt/format.h>

#include "cli/commands/profile/profile.h"
#include "cli/console/teller.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/costs/network/ping_pong.h"
#include "engine/costs/table_profile.h"
#include "engine/job/job.h"
#include "sim/ping_pong.h"

namespace rehearse::cli {
namespace {

constexpr std::size_t most_devices = 256;  // n devices have n (n - 1) pairs

/// A job with the cluster and the keys of [disturb], so that --set works as in other commands.
job::Job job_of(const Context& context, const ProfileOptions& options) {
  for (const std::string& one : context.set)
    if (!one.starts_with("disturb."))
      throw InputError(
          fmt::format("--set {}: with profile --cluster only keys of [disturb] count", one));
  return job::parse_job(
      fmt::format("model.name = \"{}\"\ncluster.name = \"{}\"\nmethod.name = \"ddp\"\n",
                  options.model, options.cluster),
      "rehearse profile --cluster", context.set);
}

}  // namespace

costs::Profile profile_cluster(const Context& context, const ProfileOptions& options) {
  const job::Job job = job_of(context, options);
  const cluster::Cluster& cluster = job.cluster;
  const std::size_t devices = cluster.devices().size();
  if (devices > most_devices)
    throw InputError(
        fmt::format("--cluster {}: {} devices have {} pairs; at most {} devices: name "
                    "fewer nodes (\"{}:N\")",
                    options.cluster, devices, devices * (devices - 1), most_devices,
                    options.cluster.substr(0, options.cluster.find(':'))));
  Teller teller(context);
  teller.say(fmt::format("measuring {} devices of {} and the paths between them", devices,
                         cluster.name()));
  const cluster::Disturber disturber(job.disturb, static_cast<int>(devices));
  costs::Profile profile{.host = fmt::format("cluster {}", cluster.name()),
                         .simulated = true,
                         .cores = cluster.shared_cores(),
                         .ranks = static_cast<int>(devices),
                         .threads_per_rank = 1,
                         .cluster = cluster.name(),
                         .cluster_hash = cluster.hash()};
  add_table_times(profile, model::load_model(options.model, options.seq_len), cluster, disturber,
                  {.samples = options.samples,
                   .tensor_parallel = options.tp,
                   .dtype = dtype_of(*from_name<job::Precision>(options.precision)),
                   .optimizer = *from_name<plan::Optimizer>(options.optimizer)});
  std::vector<Id> nodes;
  for (const cluster::Device& device : cluster.devices()) nodes.push_back(device.node);
  profile.pairs = sim::play_ping_pong(cluster, costs::pairing_rounds(nodes), disturber,
                                      link_slowdowns(job.disturb, cluster))
                      .pairs;
  return profile;
}

}  // namespace rehearse::cli
#endif
