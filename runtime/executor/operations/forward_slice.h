// Finds the ops that compute the loss, which are the ops that evaluation runs. It follows the data
// backwards, over all roles: from the head's statistics through every forward, copy, collective and
// transfer. So a method need not declare which of its ops belong to forward.
//
//   stage 0   [embedding fwd] -> [mlp fwd] -> [send]   mlp bwd   update
//                                               |
//   stage 1                                  [recv] -> [head fwd] -> stats -> [head bwd]   update
//
//   [ ]: in the slice. The head's backward is where the loss is read.
#pragma once
#include <vector>

#include "engine/link/link.h"

namespace rehearse::runtime {

/// [role][op]: whether the loss of a step needs the op. Includes the head's backward. The slice
/// ends at updates, at mailboxes, and at reads of versions that earlier steps wrote, such as
/// weights.
std::vector<std::vector<bool>> forward_slice(const link::LinkedProgram& linked);

}  // namespace rehearse::runtime
