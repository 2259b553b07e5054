// What tests of the CUDA plug-in's kernels share: the device, and numbers in its memory.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "runtime/device/accelerator.h"
#include "runtime/device/load_device.h"
#include "runtime/kernels/floats.h"
#include "tests/runtime/as_body.h"
#include "tests/runtime/comm_ranks.h"
#include "tests/runtime/cuda/gpu.h"

namespace rehearse::runtime {

using program::DType;

inline constexpr DType floats[] = {DType::f32, DType::bf16, DType::f16};

class CudaKernels : public testing::Test {
 protected:
  ~CudaKernels() override { control_.finish(); }
  Accelerator& gpu() { return *device_->accelerator(); }

  /// Memory of the device with these bytes.
  std::shared_ptr<std::byte> there(const void* bytes, std::size_t size) {
    auto memory = device_->allocate(static_cast<std::int64_t>(size));
    device_->store(memory.get(), static_cast<const std::byte*>(bytes),
                   static_cast<std::int64_t>(size));
    return memory;
  }
  template <class T>
  std::shared_ptr<std::byte> there(const T& value) {
    return there(&value, sizeof value);
  }
  template <class T>
  T back(const std::shared_ptr<std::byte>& memory) {
    T value{};
    device_->fetch(memory.get(), reinterpret_cast<std::byte*>(&value), sizeof value);
    return value;
  }
  std::vector<std::byte> back(const std::shared_ptr<std::byte>& memory, std::size_t size) {
    std::vector<std::byte> bytes(size);
    device_->fetch(memory.get(), bytes.data(), static_cast<std::int64_t>(size));
    return bytes;
  }
  void as_body(const std::function<void()>& work) { runtime::as_body(*device_, work); }

  Control control_{Environment{}, patient()};
  std::unique_ptr<Device> device_ = make_device(test_gpu(), 0, &control_);
};

/// Numbers in the memory of a tensor of this type.
inline std::vector<std::byte> stored(DType type, const std::vector<float>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::byte> out(static_cast<std::size_t>(count * size_of(type)));
  if (type == DType::f32)
    std::memcpy(out.data(), values.data(), out.size());
  else
    store_f32(values.data(), count, out.data(), type, 0);
  return out;
}

/// Normal numbers in the memory of a tensor of this type.
inline std::vector<std::byte> numbers(DType type, std::int64_t count, unsigned seed,
                                      float scale = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  std::ranges::generate(values, [&] { return normal(engine); });
  return stored(type, values);
}

}  // namespace rehearse::runtime
