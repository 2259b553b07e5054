// The part of the command that needs LibTorch is a module (cli/train/), which is loaded when a
// command needs it. So all other commands start without LibTorch's 500 MB, and can be built without
// LibTorch. The module uses the engine of the program that loads it, in librehearse.so: there is
// one registry of methods and one set of types.
#pragma once
#include <string>
#include <vector>

#include "cli/commands/profile/profile.h"
#include "cli/console/context.h"
#include "engine/job/job.h"
#include "runtime/communication/ports.h"

namespace rehearse::cli {

/// The options of `rehearse train`.
struct TrainFlags {
  std::string job = {}, trace = {}, weights = {}, out_weights = {}, profile_out = {};
  std::string resume_from = {}, faults = {};
  std::string nnodes = {}, rendezvous = {};
  int nproc = 0;
  bool resume = false, overwrite = false, rehearsed = false;
  bool folder_locked = false;  // by the launcher of this rank
};

/// The functions of the module. They throw InputError, ProgramError and BackendError.
struct Training {
  /// Starts the ranks, or runs as one of them. Returns the exit status.
  int (*train)(const Context& context, const TrainFlags& options) = nullptr;
  /// The same for `rehearse profile`. Rank 0 hands the profile to `write`.
  int (*profile)(const Context& context, const ProfileOptions& options,
                 ProfileWriter* write) = nullptr;
  /// A sentence for `rehearse doctor`: which kernels compute matrix products on this machine.
  std::string (*products)() = nullptr;
  /// For `rehearse doctor`: the device that ranks take with this run.device. Throws InputError as
  /// `train` does.
  std::string (*device)(const std::string& kind) = nullptr;
  /// For `rehearse doctor`: the ports of a run.
  std::vector<runtime::OpenPort> (*ports)(const job::Run& run) = nullptr;
};

inline constexpr const char* training_module = "librehearse_training.so";
/// The module; the first call loads it. Throws InputError that says how to get the module when it
/// is missing or cannot be loaded.
const Training& training();

}  // namespace rehearse::cli
