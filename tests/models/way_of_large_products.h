// Tests whose products are small take the way of large ones, which on some processors is another.
#pragma once
#include "models/large_products.h"
#include "models/layers.h"

namespace rehearse::models {

enum class Way : std::uint8_t { by_size, of_the_large };

/// Until it ends, every product is computed as `way` says.
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
