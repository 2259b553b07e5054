#include "engine/base/fnv.h"

#include <fmt/format.h>

namespace rehearse {

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace rehearse
