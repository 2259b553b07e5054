// The version that the first line of a program's text carries: raised when old text would be
// misread.
#pragma once

namespace rehearse::program {

inline constexpr int text_version = 1;

}  // namespace rehearse::program
