// Prints numbers for people. A result that rounds to zero prints as "0.0", never as "-0.0".
#pragma once
#include <string>

namespace rehearse {

/// `value` with `decimals` digits after the point.
std::string fixed(double value, int decimals);
/// A fraction as a percentage: percent(0.5, 1) is "50.0%".
std::string percent(double fraction, int decimals);

}  // namespace rehearse
