#include "cli/chaos/run_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/chaos/run_traces.h"
#include "cli/console/spawn.h"
#include "engine/base/errors.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/files/files.h"
#include "engine/methods/strategy.h"
#include "study/load.h"

namespace rehearse::cli {
namespace {

/// Whether a run has as many ranks after a recovery as before, so that its weights stay the same to
/// the bit.
bool keeps_ranks(job::RecoveryPolicy policy) {
  return policy == job::RecoveryPolicy::restart || policy == job::RecoveryPolicy::spare;
}

namespace fs = std::filesystem;

constexpr double timeout_s = 5;
constexpr int restarts = 3;

/// Messages that arrive in any order are added in any order.
bool by_arrival(const job::Job& job) {
  const program::Program program = job::program_of(job);
  return std::ranges::any_of(program.channels, [](const program::Channel& channel) {
    return channel.match == program::Match::mailbox;
  });
}

std::string platform_text(int nodes) {
  return fmt::format(
      "summary = \"nodes on one switch\"\n[[nodes]]\ncount = {}\ndevices = [\"CPU core\"]\n"
      "device_name = \"rank\"\nlinks = [{{ from = \"rank0\", to = \"fabric\", bandwidth = "
      "\"1Gb/s\", latency = \"20us\", tcp_mtu = 1500 }}]\n",
      nodes);
}

fs::path testbed() { return data_dir() / "tools/testbed"; }

Words train(const TrialJob& subject, const std::string& out, const Words& more) {
  Words words{own_path().string(), "train", subject.job, "--quiet"};
  for (const std::string& one : subject.set) words.insert(words.end(), {"--set", one});
  words.insert(words.end(), {"--set", "train.out=" + out});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TrialJob trial_job_for(const Context& context, const std::string& path,
                       const study::MethodChoice& choice, int nproc) {
  const job::Job base = study::load_for(path, context.set, nproc);
  TrialJob out{
      .job = path, .label = choice.label, .set = study::overrides_for(choice, base, context.set)};
  const auto unless_stated = [&](const char* key, const std::string& value) {
    const std::string setting = fmt::format("{}=", key);
    const bool of_method = std::ranges::any_of(
        choice.set, [&](const std::string& one) { return one.starts_with(setting); });
    if (!base.where.contains(key) && !of_method) out.set.push_back(setting + value);
  };
  if (nproc > 0 && base.cluster.shared_cores() > 0)
    unless_stated("cluster.world_size", std::to_string(nproc));
  unless_stated("recovery.restarts", std::to_string(restarts));
  unless_stated("run.timeout", fmt::format("{}s", timeout_s));
  if (base.train.save_every == 0)
    unless_stated("train.save_every",
                  std::to_string(std::max<std::int64_t>(base.train.steps / 5, 1)));
  Context with = context;
  with.set = out.set;
  const job::Job job = study::load_for(path, with.set, nproc);
  out.shape = {.ranks = job.plan.mesh.world_size(),
               .steps = job.train.steps,
               .save_every = std::max<std::int64_t>(job.train.save_every, 1)};
  if (keeps_ranks(job.recovery.policy)) out.shape.ranks_left = out.shape.ranks;
  if (out.shape.steps < 4 || out.shape.save_every >= out.shape.steps)
    throw InputError(fmt::format(
        "{}: train.steps = {} with train.save_every = {}: trials need at least 4 steps and a "
        "checkpoint before the last one",
        path, out.shape.steps, out.shape.save_every));
  out.restarts = job.recovery.restarts;
  if (!base.where.contains("run.check_every"))
    out.check_every = std::max<std::int64_t>(out.shape.steps / 10, 1);
  out.timeout_s = job.run.timeout.value;
  const bool planned = methods::planned(job.plan.method);
  if (planned)
    out.rule = "plans again after it has gone on from a checkpoint";
  else if (by_arrival(job))
    out.rule = "adds gradients as they arrive";
  else if (!keeps_ranks(job.recovery.policy))
    out.rule = "goes on with other ranks";
  out.exact = out.rule.empty();
  return out;
}

Words train_command(const TrialJob& subject, const std::string& out, const Words& more) {
  Words words = train(subject, out, more);
  words.insert(words.end(), {"--nproc", std::to_string(subject.shape.ranks)});
  return words;
}

Words on_small_disk(const Words& command, const std::string& out, std::int64_t bytes) {
  fs::create_directories(out);
  Words words{"unshare",
              "--mount",
              "--map-root-user",
              "sh",
              "-c",
              fmt::format("mount -t tmpfs -o size={} tmpfs \"$0\" && exec \"$@\"", bytes),
              out};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

Words on_network(const TrialJob& subject, const std::string& folder, const std::string& out,
                 const Words& faults, const Words& more) {
  const std::string platform = (fs::path(folder) / "nodes.toml").string();
  write_file(platform, platform_text(subject.shape.ranks));
  Words words{testbed().string(),    platform, "--quiet", "--grace", "30s", "--after",
              out + "/metrics.jsonl"};
  words.insert(words.end(), faults.begin(), faults.end());
  words.emplace_back("--");
  const Words command = train(subject, out, more);
  words.insert(words.end(), command.begin(), command.end());
  for (const std::string& one :
       {"cluster.name=" + platform, std::string("cluster.world_size="),
        std::string("cluster.profile="), std::string("recovery.restarts=0")})
    words.insert(words.end(), {"--set", one});
  return words;
}

std::string why_no_network(const std::string& folder) {
  if (!fs::exists(testbed())) return fmt::format("{} is not there", testbed().string());
  const std::string platform = (fs::path(folder) / "probe.toml").string();
  write_file(platform, platform_text(2));
  const Finished done = run_program(
      {testbed().string(), platform, "--quiet", "--loss", "node1=1%", "--", "true"}, true);
  return done.status == 0 ? "" : last_error(done.output);
}

std::string why_no_small_disk() {
  const Finished done = run_program({"unshare", "--mount", "--map-root-user", "sh", "-c",
                                     "mount -t tmpfs -o size=4096 tmpfs /mnt"},
                                    true);
  return done.status == 0 ? "" : last_error(done.output);
}

}  // namespace rehearse::cli
