#include "runtime/training/run_start.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/control/together.h"
#include "runtime/device/accelerator.h"
#include "runtime/device/load_device.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;

/// The step of the newest checkpoint in a folder; -1: there is none that counts. Adds one whose
/// manifest is damaged to `passed`.
std::int64_t newest_step(const std::string& folder, std::vector<PassedOver>& passed) {
  try {
    return read_manifest(find_checkpoint(folder)).step;
  } catch (const InputError& error) {
    const std::vector<std::string> all = checkpoints_in(folder);
    if (!all.empty()) passed.push_back({.step = *checkpoint_step(all.back()), .why = error.what()});
    return -1;
  }
}

void check_folder(const job::Job& job, const TrainOptions& options, const RunStart& start) {
  std::error_code error;
  fs::create_directories(job.train.out, error);
  const fs::path probe = fs::path(job.train.out) / ".writable";
  if (error || !std::ofstream(probe).put('\n'))
    throw InputError(fmt::format("train.out = \"{}\": cannot write there{}", job.train.out,
                                 error ? ": " + error.message() : std::string()));
  fs::remove(probe, error);
  if (!start.within && !options.overwrite) check_unused(job.train.out);
}

int cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

}  // namespace

void check_threads(const job::Job& job) {
  const int most = 16 * cores();  // more would exhaust the system's processes, to no use
  if (job.run.threads > most)
    throw InputError(fmt::format("run.threads: {}: at most {} on this machine, 16 for each core",
                                 job.run.threads, most));
}

void check_ranks(const job::Job& job, const Environment& environment) {
  if (environment.world_size != job.plan.mesh.world_size())
    throw InputError(fmt::format(
        "the job's mesh needs {} ranks (pp {} x dp {} x cp {} x tp {} + {} servers), {} were "
        "started",
        job.plan.mesh.world_size(), job.plan.mesh.pp, job.plan.mesh.dp, job.plan.mesh.cp,
        job.plan.mesh.tp, job.plan.mesh.servers, environment.world_size));
}

void set_threads(const job::Job& job, const Environment& environment) {
  at::set_num_threads(job.run.threads > 0 ? job.run.threads
                                          : std::max(1, cores() / environment.local_world_size));
  // Activations are allocated and freed in every step. Keep their pages instead of requesting them
  // from the kernel each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
}

std::vector<std::string> about_device(const job::Job& job, Device& device,
                                      const Executor& executor) {
  if (!device.asynchronous()) {
    if (!has_gpu() || job.run.device != "auto") return {};
    return {
        "trains on the CPU; run.device=cuda trains on this machine's GPUs, which no test has done "
        "so far"};
  }
  std::vector<std::string> sentences = {fmt::format("trains on the device {}", device.name())};
  if (device.accelerator() == nullptr) return sentences;
  if (const std::vector<std::string> host_work = executor.host_work(); !host_work.empty())
    sentences.push_back(fmt::format("the device has no kernel for {}: the host computes that",
                                    fmt::join(host_work, ", ")));
  if (const auto stated = job.plan.exchange.collective; stated != program::Algorithm::automatic)
    sentences.push_back(
        fmt::format("NCCL chooses its algorithms itself, so method.collective = \"{}\" decides "
                    "predictions alone (NCCL_ALGO restricts NCCL)",
                    name_of(stated)));
  return sentences;
}

void check_trainable(const job::Job& job, const link::LinkedProgram& linked) {
  if (job.recovery.slow_factor > 0 && linked.mailboxes)
    throw InputError(
        fmt::format("recovery.slow_factor: {:g}: workers of method \"{}\" do not wait for each "
                    "other, so a slow one only does fewer steps; leave it out",
                    job.recovery.slow_factor, job.plan.method));
  if (job.train.data.empty())
    throw InputError(
        "train.data is missing: the folder of token shards that data/prepare.py makes");
  if (const auto& every = job.plan.exchange.averaging.local_steps;
      every && *every > job.train.steps)
    throw InputError(
        fmt::format("method.local_steps: {}{}: in train.steps = {} ranks would never exchange "
                    "weights; at most {}",
                    *every,
                    job.where.contains("method.local_steps")
                        ? ""
                        : fmt::format(" by default with {}", job.plan.method),
                    job.train.steps, job.train.steps));
}

std::int64_t next_boundary(const job::Job& job, std::int64_t step) {
  const job::Train& train = job.train;
  std::int64_t next = train.steps;
  // The program's own checkpoints do not stop training, unless each is checked.
  const bool stops = job.plan.checkpoints.every == 0 || job.run.check_every > 0;
  const std::int64_t save_every = stops ? train.save_every : 0;
  for (const std::int64_t every : {train.eval_every, save_every, job.run.check_every})
    if (every > 0) next = std::min(next, (step / every + 1) * every);
  return next;
}

void reading_checkpoint(const std::string& checkpoint, const std::function<void()>& read,
                        const std::function<void()>& alive) {
  try {
    read();
  } catch (const InputError& error) {
    throw InputError(error.what() + undamaged_checkpoint_before(checkpoint, alive));
  }
}

RunStart find_start(const job::Job& job, const TrainOptions& options, const NodeStore& store,
                    Control& control) {
  RunStart start;
  const bool from_nodes = options.resume_from.empty() || options.resume_from == store.root();
  if (options.resume && store.used() && from_nodes) {
    start.held = gather_held(store, checked_until(job.train.out), control);
    const bool first = control.environment().rank == 0 && options.resume_from.empty();
    const std::vector<std::string> on_disk =
        control.gather("newest step in train.out",
                       first ? std::to_string(newest_step(job.train.out, start.passed)) : "-1");
    if (start.held.newest && start.held.newest->step < std::stoll(on_disk[0]))
      start.held.newest.reset();
  }
  if (start.held.newest) {
    const auto rank = static_cast<Id>(control.environment().rank);
    start.checkpoint = checkpoint_path(store.folder_of(rank), start.held.newest->step);
    start.within = true;
  } else if (options.resume) {
    std::string step;
    together(control, "checkpoint to go on from", [&] {
      start.checkpoint =
          find_checkpoint(options.resume_from.empty() ? job.train.out : options.resume_from);
      reading_checkpoint(start.checkpoint,
                         [&] { step = std::to_string(read_manifest(start.checkpoint).step); });
    });
    control.agree("the step of " + start.checkpoint, step);
    start.within = !job.train.out.empty() && lies_in(start.checkpoint, job.train.out);
  }
  if (control.environment().rank == 0 && options.resume_from.empty() && !start.checkpoint.empty()) {
    std::ranges::move(passed_over(start.held.of_rank, -1), std::back_inserter(start.passed));
    const std::int64_t step = *checkpoint_step(start.checkpoint);
    std::erase_if(start.passed, [&](const PassedOver& one) { return one.step <= step; });
  } else {
    start.passed.clear();
  }
  together(control, "train.out", [&] {
    if (!job.train.out.empty() && control.environment().rank == 0)
      check_folder(job, options, start);
  });
  return start;
}

}  // namespace rehearse::runtime
