// What `shrink` and `grow` have in common: the run goes on with as many replicas as the nodes
// allow, and keeps its global batch.
#pragma once
#include "engine/goodput/recovery_policy.h"

namespace rehearse::goodput {

Decision go_on_with_fewer(const Situation& situation);

}  // namespace rehearse::goodput
