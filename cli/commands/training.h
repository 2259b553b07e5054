// What of the command needs LibTorch: a module that is loaded when a command asks for it
// (cli/training/). So everything else starts without LibTorch's 500 MB, and builds before LibTorch
// is there. The module uses the program's own engine: one registry of methods, one set of types.
#pragma once
#include <string>

#include "cli/commands/profile.h"
#include "cli/console/context.h"

namespace rehearse::cli {

struct TrainFlags {
  std::string job = {}, trace = {}, weights = {}, out_weights = {}, profile_out = {};
  std::string resume_from = {};
  int nproc = 0;
  bool resume = false, overwrite = false, rehearsed = false;
};

/// What the module offers. Exit statuses are returned; errors are thrown as everywhere.
struct Training {
  /// Starts ranks, or is one of them.
  int (*train)(const Context& context, const TrainFlags& options) = nullptr;
  /// The same, to measure them. Rank 0 writes the profile.
  int (*profile)(const Context& context, const ProfileOptions& options) = nullptr;
  /// Which kernels real ranks compute with here, in words for `rehearse doctor`.
  std::string (*products)() = nullptr;
};

inline constexpr const char* training_module = "librehearse_training.so";
/// The module, loaded at the first call. Throws InputError that says how to get it when it is not
/// there or does not load.
const Training& training();

}  // namespace rehearse::cli
