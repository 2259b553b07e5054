// `rehearse profile`: measures this machine with as many ranks as will run later, or simulates the
// same measurements on a modelled cluster. It writes the profile that a job names in
// cluster.profile. Source: docs/profile.md; the Topology Profiler of Sun 2026, section 3.1.
#include "cli/commands/profile/profile.h"

#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands/training.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/names.h"
#include "engine/job/job.h"

namespace rehearse::cli {
namespace {

/// The profiles of --merge as one profile.
costs::Profile merged(const ProfileOptions& options) {
  costs::Profile out = costs::load_profile(options.merge[0]);
  std::string names = options.merge[0];
  for (std::size_t i = 1; i < options.merge.size(); ++i) {
    out = merge(out, costs::load_profile(options.merge[i]), names, options.merge[i]);
    names += " + " + options.merge[i];
  }
  return out;
}

void write_profile(const Context& context, const ProfileOptions& options,
                   const costs::Profile& profile) {
  write_file(options.output, to_json(profile));
  if (context.json) {
    std::cout << to_json(profile);
    return;
  }
  if (context.quiet) return;
  fmt::print("{}: {}{} with {} rank{} of {} thread{}: {} segment times, {} collectives, {} pairs",
             options.output, profile.host, profile.simulated ? " (simulated)" : "", profile.ranks,
             profile.ranks == 1 ? "" : "s", profile.threads_per_rank,
             profile.threads_per_rank == 1 ? "" : "s", profile.segments.size(),
             profile.collectives.size(), profile.pairs.size());
  if (!profile.variances.empty()) fmt::print(", variances of {} layers", profile.variances.size());
  fmt::print("\n");
}

int run_profile(const Context& context, const ProfileOptions& options) {
  check_writable("-o", options.output, !options.merge.empty());
  if (!options.merge.empty()) {
    write_profile(context, options, merged(options));
    return good;
  }
  if (!options.cluster.empty()) {
    write_profile(context, options, profile_cluster(context, options));
    return good;
  }
  return training().profile(context, options, write_profile);
}

}  // namespace

#ifndef REHEARSE_HAS_SIM
costs::Profile profile_cluster(const Context&, const ProfileOptions&) {
  throw InputError("--cluster: this build has no SimGrid");
}
#endif

void add_profile(CLI::App& app, Context& context) {
  const Command command(
      app, context, "profile", "Measure this machine, or a modelled cluster, for simulations",
      "  rehearse profile -o profile.json --nproc 2\n"
      "  rehearse simulate experiments/demo-ddp.toml --set cluster.profile=profile.json\n"
      "  rehearse profile -o h100.json --nproc 8 --device cuda --kind H100 --precision bf16\n"
      "  rehearse profile -o paper.json --cluster paper --model bert-paper-110m\n"
      "  rehearse profile -o both.json --merge v100.json,rtx4090.json");
  auto options = std::make_shared<ProfileOptions>();
  command.option("-o,--output", options->output, "Where to write it").type("FILE").required();
  const Option cluster =
      command
          .option("--cluster", options->cluster,
                  "Play it on this modelled cluster instead, disturbed as --set disturb.* says")
          .type("NAME");
  const Option ranks = command.option("--nproc", options->nproc, "Ranks that run while it measures")
                           .between(1, 4096)
                           .excludes(cluster);
  command.option("--model", options->model, "Model whose segments are timed")
      .type("NAME")
      .shows_default();
  command.option("--seq-len", options->seq_len, "Tokens a sample; default: the model's")
      .between(1, 1 << 20);
  command.option("--samples", options->samples, "Samples of a micro-batch, several sizes")
      .between(1, 4096)
      .comma_separated()
      .shows_default();
  command.option("--tp", options->tp, "Tensor-parallel sizes")
      .between(1, 1024)
      .comma_separated()
      .shows_default();
  command.option("--optimizer", options->optimizer, "adamw or sgd")
      .one_of(names_of<plan::Optimizer>())
      .shows_default();
  command.option("--precision", options->precision, "fp32, bf16 or fp16")
      .one_of({"fp32", "bf16", "fp16"})  // a profile has no times in FP8
      .shows_default();
  command.option("--device", options->device, "Device of the ranks: auto, cpu or cuda")
      .type("NAME")
      .shows_default()
      .excludes(cluster);
  const Option kind =
      command
          .option("--kind", options->kind,
                  "What platforms/devices.toml calls the device; default: as --ranks-on says")
          .type("NAME")
          .excludes(cluster);
  command.option("--threads", options->threads, "Per rank; default: cores / ranks")
      .between(1, 4096)
      .excludes(cluster);
  command
      .flag("--no-network", options->no_network,
            "Measure no communication: the job's platform states it")
      .excludes(cluster);
  command
      .flag("--encrypt", options->encrypt, "Measure connections as run.encrypt = true makes them")
      .excludes(cluster);
  command
      .option("--ranks-on", options->ranks_on,
              "The platform whose device i rank i stands on; default: this host")
      .type("NAME")
      .excludes(cluster)
      .excludes(kind);
  command
      .option("--merge", options->merge,
              "Measure nothing: put these profiles together, comma between them")
      .comma_separated()
      .type("FILE")
      .excludes(cluster)
      .excludes(ranks);
  command.runs([&context, options] { return run_profile(context, *options); });
}

}  // namespace rehearse::cli
