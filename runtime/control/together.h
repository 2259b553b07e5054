// Work that succeeds on all ranks or fails on all: a failure on one rank becomes an error on each.
#pragma once
#include <functional>
#include <string>

#include "runtime/control/control.h"

namespace rehearse::runtime {

/// Runs `work` on this rank; every rank calls it with the same `what`. When it failed on any rank,
/// every rank throws: the InputError of the lowest rank that has one, word for word; else this
/// rank's own BackendError; else the lowest failed rank's BackendError, with that rank's number.
///
/// `lane` is at work during `work`, which may take any time as long as it pulses: the other ranks,
/// whose lanes communicate, wait until a verdict. The lane communicates in the end. Without a lane
/// they wait for the join timeout.
void together(Control& control, const std::string& what, const std::function<void()>& work,
              LaneProgress* lane = nullptr);

}  // namespace rehearse::runtime
