// The version in the first line of a program's text. It is raised when this build would misread
// older text.
#pragma once

namespace rehearse::program {

inline constexpr int text_version = 1;

}  // namespace rehearse::program
