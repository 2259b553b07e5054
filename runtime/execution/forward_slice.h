// The part of a program that makes the loss: what evaluation runs. A data-flow slice, backwards
// from the statistics that the head's backward reads, through every copy, gather and transfer, over
// all roles; no method has to say what its forward is.
#pragma once
#include <vector>

#include "engine/link/link.h"

namespace rehearse::runtime {

/// By role and op: true for what the loss of a step needs, the head's backward (where the loss is
/// read) included. Weights count as given: the slice ends at reads of earlier versions, at updates
/// and at mailboxes.
std::vector<std::vector<bool>> forward_slice(const link::LinkedProgram& linked);

}  // namespace rehearse::runtime
