// Restart: all processes end, spare nodes take the place of dead ones, and the job starts anew from
// its newest checkpoint. Without spare nodes it waits. This is what schedulers and torchrun do.
#include "engine/goodput/recovery_policy.h"

namespace rehearse::goodput {
namespace {

const Register restart(job::RecoveryPolicy::restart,
                       {.summary = "all processes start anew from the newest checkpoint",
                        .source = "torchrun; Grattafiori et al. 2024, section 3.3.4",
                        .recover = start_anew});

}  // namespace
}  // namespace rehearse::goodput
