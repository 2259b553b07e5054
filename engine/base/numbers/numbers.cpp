#include "engine/base/numbers/numbers.h"

#include <fmt/format.h>

namespace rehearse {

std::string fixed(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (text.find_first_not_of("-0.") == std::string::npos && text.front() == '-') text.erase(0, 1);
  return text;
}

std::string percent(double fraction, int decimals) { return fixed(100 * fraction, decimals) + "%"; }

}  // namespace rehearse
