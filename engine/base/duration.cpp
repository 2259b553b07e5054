#include "engine/base/duration.h"

#include <fmt/format.h>

#include <cstdlib>

#include "engine/base/errors.h"
#include "engine/base/numbers/limits.h"

namespace rehearse {

std::string days(Seconds s) { return fmt::format("{:.4g} d", s.value / 86400); }

Seconds duration_of(const char* option, const std::string& text, const Limits& limits) {
  Seconds out;
  try {
    out = parse_seconds(text);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", option, error.what()));
  }
  if (out.value < limits.least || out.value > limits.most)
    throw InputError(fmt::format("{} {}: must be from {} to {}", option, text,
                                 to_text(Seconds(limits.least)), days(Seconds(limits.most))));
  return out;
}

Seconds patience_with_programs() {
  constexpr const char* variable = "REHEARSE_PROGRAM_TIMEOUT";
  const char* stated = std::getenv(variable);
  if (stated == nullptr || *stated == '\0') return Seconds{600};
  return duration_of(variable, stated, limits::patience);
}

}  // namespace rehearse
