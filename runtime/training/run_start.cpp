#include "runtime/training/run_start.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "engine/base/errors.h"
#include "runtime/checkpoints/manifest.h"
#include "runtime/checkpoints/run_folder.h"
#include "runtime/control/together.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

void reading_checkpoint(const std::string& checkpoint, const std::function<void()>& read) {
  try {
    read();
  } catch (const InputError& error) {
    throw InputError(error.what() + undamaged_checkpoint_before(checkpoint));
  }
}

RunStart find_start(const job::Job& job, const TrainOptions& options, Control& control) {
  RunStart start;
  if (options.resume) {
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
  together(control, "train.out", [&] {
    if (!job.train.out.empty() && control.environment().rank == 0)
      check_folder(job, options, start);
  });
  return start;
}

}  // namespace rehearse::runtime
