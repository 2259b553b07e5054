// The function that libFuzzer calls. It calls the target that the macro REHEARSE_FUZZ_TARGET names.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  rehearse::fuzz::REHEARSE_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
