// Lets tests compute their small products with the kernels of large ones, which differ on some
// processors.
#pragma once
#include "models/large_products.h"
#include "models/layers.h"

namespace rehearse::models {

enum class Way : std::uint8_t { by_size, of_the_large };

/// While an object of this class lives, products are computed as `way` says. Afterwards the limit
/// is the default again.
class TakeWay {
 public:
  explicit TakeWay(Way way) {
    if (way == Way::of_the_large) before_ = lower_large_product(0);
  }
  TakeWay(const TakeWay&) = delete;
  TakeWay& operator=(const TakeWay&) = delete;
  ~TakeWay() { lower_large_product(before_); }

 private:
  std::int64_t before_ = large_product;
};

}  // namespace rehearse::models
