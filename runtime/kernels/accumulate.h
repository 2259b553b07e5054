// into += from, element by element in the wire's dtype: the sum that a collective makes.
#pragma once
#include <cstdint>

#include "engine/program/program.h"

namespace rehearse::runtime {

/// f32 and i32 add as they are (i32 wraps), u8 adds modulo 256, bf16 and f16 are added in f32 and
/// rounded to nearest even. The buffers do not overlap.
void accumulate(void* into, const void* from, std::int64_t elements, program::DType dtype);

}  // namespace rehearse::runtime
