// A launcher among others of an elastic run. Nodes may come while it runs, and go.
#pragma once
#include "runtime/control/launch/launcher.h"

namespace rehearse::runtime {

/// `launch` with LaunchOptions::elastic, whose rules are:
/// - The first start waits for `least` nodes and, a few seconds longer, for `most`.
/// - When a node has come, all ranks end after the same step, and a start with more ranks follows.
/// - When a rank or a launcher has died, a start with the nodes that are left follows. With fewer
///   than `least` the run waits for others, for `patience`, and then ends with status 1.
/// - The launcher whose name is lowest leads; when it dies, the next one.
Launched launch_elastic(const RankWork& work, const LaunchOptions& options);

}  // namespace rehearse::runtime
