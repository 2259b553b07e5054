// Layouts in words, for messages.
#pragma once
#include <string>

#include "engine/program/program.h"

namespace rehearse::link {

/// "partial sum over dp", "copy", ...
std::string text_of(const program::Program& program, program::Layout layout);

}  // namespace rehearse::link
