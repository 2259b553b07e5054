// The errors when the accelerator's plug-in is missing or is another library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/errors.h"
#include "runtime/communication/accelerator.h"
#include "tests/runtime/comm_ranks.h"

namespace rehearse::runtime {
namespace {

std::string error_of(const std::string& path) {
  Control control(Environment{}, patient());
  std::string text = "no error";
  try {
    load_accelerator(control, path);
  } catch (const BackendError& error) {
    text = error.what();
  }
  control.finish();
  return text;
}

TEST(CommAccelerator, SaysWhatIsMissing) {
  EXPECT_THAT(error_of("/nonexistent/librehearse_cuda.so"),
              testing::AllOf(testing::HasSubstr("the CUDA plug-in cannot be loaded"),
                             testing::HasSubstr("/nonexistent/librehearse_cuda.so")));
  EXPECT_EQ(error_of("libm.so.6"), "libm.so.6 is no plug-in of this program");
}

}  // namespace
}  // namespace rehearse::runtime
