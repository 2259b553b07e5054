#include "cli/train/profile_ranks.h"

#include <fmt/format.h>

#include <optional>

#include "cli/console/guarded.h"
#include "cli/console/teller.h"
#include "engine/base/names.h"
#include "engine/job/job.h"
#include "engine/model/model.h"
#include "runtime/control/launch/environment.h"
#include "runtime/control/launch/launcher.h"
#include "runtime/device/load_device.h"
#include "runtime/profiling/profiler.h"

namespace rehearse::cli {

namespace {

/// The part of one rank.
int measure(const Context& context, const ProfileOptions& options, const model::ModelSpec& model,
            ProfileWriter* write) {
  runtime::ProfileSettings settings;
  settings.samples = options.samples;
  settings.tensor_parallel = options.tp;
  settings.optimizer = *from_name<plan::Optimizer>(options.optimizer);
  settings.threads = options.threads;
  settings.dtype = dtype_of(*from_name<job::Precision>(options.precision));
  settings.device = options.device;
  settings.cluster = options.ranks_on;
  settings.kind = options.kind;
  settings.network = !options.no_network;
  settings.encrypt = options.encrypt;
  const runtime::Environment environment = runtime::detect_environment();
  std::optional<Teller> teller;
  if (environment.rank == 0)
    teller.emplace(context).say(
        fmt::format("measuring {} with {} ranks", model.name, environment.world_size));
  const costs::Profile profile = measure_profile(model, settings, environment);
  teller.reset();
  if (environment.rank == 0) write(context, options, profile);
  return good;
}

}  // namespace

int profile_ranks(const Context& context, const ProfileOptions& options, ProfileWriter* write) {
  runtime::check_device(options.device);
  const model::ModelSpec model = model::load_model(options.model, options.seq_len);
  const auto rank = [&] { return measure(context, options, model, write); };
  if (options.nproc == 0) return rank();
  return runtime::launch([&] { return guarded(rank); }, {.nproc = options.nproc}).status;
}

}  // namespace rehearse::cli
