// `rehearse profile` between real ranks.
#include "cli/launch_ranks.h"
#include "cli/profile.h"
#include "engine/model.h"
#include "engine/names.h"
#include "runtime/environment.h"
#include "runtime/profiler.h"

namespace rehearse {

int profile_ranks(const Context& context, const ProfileOptions& options) {
  const ModelSpec model = load_model(options.model, options.seq_len);
  if (options.nproc > 0) return start_ranks(context.arguments, options.nproc);
  ProfileSettings settings;
  settings.samples = options.samples;
  settings.tensor_parallel = options.tp;
  settings.optimizer = *from_name<Optimizer>(options.optimizer);
  settings.threads = options.threads;
  settings.cluster = options.ranks_on;
  const Environment environment = detect_environment();
  const Profile profile = measure_profile(model, settings, environment);
  if (environment.rank == 0) write_profile(context, options, profile);
  return good;
}

}  // namespace rehearse
