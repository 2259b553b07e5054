// Work that all ranks do, or none has done: a failure on one of them is a failure on each.
#pragma once
#include <functional>
#include <string>

#include "runtime/control/control.h"

namespace rehearse::runtime {

/// Runs `work` on this rank; every rank calls it. When it failed on any of them, throws on all: the
/// InputError of the lowest rank that has one, word for word; else this rank's own BackendError, or
/// the lowest rank's, which it then names.
void together(Control& control, const std::string& what, const std::function<void()>& work);

}  // namespace rehearse::runtime
