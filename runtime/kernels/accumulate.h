// The sum of a collective: into += from, element by element, in the dtype that is sent.
#pragma once
#include <cstdint>

#include "engine/program/program.h"

namespace rehearse::runtime {

/// f32 adds in fp32, i32 wraps, u8 adds modulo 256. bf16 and f16 add in fp32 and round to nearest,
/// ties to even. The buffers must not overlap.
void accumulate(void* into, const void* from, std::int64_t elements, program::DType dtype);

}  // namespace rehearse::runtime
