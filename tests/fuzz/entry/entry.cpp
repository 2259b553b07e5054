// The functions that libFuzzer calls. The macro REHEARSE_FUZZ_TARGET names the target.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tests/fuzz/targets.h"

#define REHEARSE_TEXT(name) #name
#define REHEARSE_NAME(name) REHEARSE_TEXT(name)

/// With the argument --words the fuzzer prints the words of its format, as a dictionary, and ends.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 2 || std::string_view((*argv)[1]) != "--words") return 0;
  for (const std::string& word : rehearse::fuzz::words_of(REHEARSE_NAME(REHEARSE_FUZZ_TARGET)))
    fmt::print("\"{}\"\n", word);
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  rehearse::fuzz::REHEARSE_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
