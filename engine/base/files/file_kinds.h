// The kinds of TOML files that this program reads. A file in the place of another kind is named as
// what it is, before any of its keys is.
#pragma once
#include <cstdint>

#include "engine/base/files/config.h"

namespace rehearse {

enum class FileKind : std::uint8_t {
  job,
  sweep,
  platform,
  model,
  software,
  failure_model,
  fault_trace,
  plan
};

/// Throws InputError when a file that is read as one kind has keys of another kind only.
void check_kind(const Config& file, FileKind wanted);

}  // namespace rehearse
