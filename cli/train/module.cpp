// The entry point of the module that needs LibTorch. It returns the table of functions that
// cli/commands/training.h declares.
#include <fmt/format.h>

#include <bit>
#include <cstdint>

#include "cli/commands/training.h"
#include "cli/train/profile_ranks.h"
#include "cli/train/train_job.h"
#include "models/large_products.h"
#include "runtime/communication/ports.h"
#include "runtime/device/load_device.h"

namespace rehearse::cli {
namespace {

/// A sentence for `rehearse doctor`: which library computes matrix products here, and why.
std::string products() {
  const models::LargeProducts& large = models::large_products();
  return fmt::format("LibTorch's ({}); those of 2^{} multiplications and more {}: {}",
                     models::vector_instructions(),
                     std::bit_width(std::uint64_t{models::large_product}) - 1,
                     large.one_dnn ? "are oneDNN's" : "too", large.why);
}

constexpr Training offered{.train = train_job,
                           .profile = profile_ranks,
                           .products = products,
                           .device = runtime::check_device,
                           .ports = runtime::ports_of};

}  // namespace
}  // namespace rehearse::cli

extern "C" const rehearse::cli::Training* rehearse_training() { return &rehearse::cli::offered; }
