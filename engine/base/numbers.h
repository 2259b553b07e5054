// Numbers as people read them. A result that rounds to nothing is "0.0", never "-0.0".
#pragma once
#include <string>

namespace rehearse {

/// So many digits after the point.
std::string fixed(double value, int decimals);
/// Of a fraction: percent(0.5, 1) is "50.0%".
std::string percent(double fraction, int decimals);

}  // namespace rehearse
