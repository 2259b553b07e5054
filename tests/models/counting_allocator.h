// A tensor allocator that counts the bytes in use and their peak.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace rehearse::models {

/// Takes memory from LibTorch and stores the number of bytes in front of the data. The counts are
/// shared by all objects of this class, because a tensor may outlive the allocator that made it.
class CountingAllocator final : public c10::Allocator {
 public:
  static constexpr std::size_t header = 64;  // a whole alignment unit, so that data stay aligned

  static std::int64_t live() { return live_bytes; }
  static std::int64_t peak() { return peak_bytes; }
  static void restart_peak() { peak_bytes = live_bytes.load(); }

  at::DataPtr allocate(std::size_t n) override {
    if (n == 0) return {nullptr, nullptr, &release, c10::kCPU};
    auto* const memory = static_cast<std::size_t*>(c10::alloc_cpu(n + header));
    *memory = n;
    const std::int64_t now = live_bytes += static_cast<std::int64_t>(n);
    std::int64_t seen = peak_bytes;
    while (now > seen && !peak_bytes.compare_exchange_weak(seen, now)) continue;
    char* const data = reinterpret_cast<char*>(memory) + header;
    return {data, data, &release, c10::kCPU};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t n) const override {
    std::memcpy(to, from, n);
  }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    void* const memory = static_cast<char*>(data) - header;
    live_bytes -= static_cast<std::int64_t>(*static_cast<std::size_t*>(memory));
    c10::free_cpu(memory);
  }

  static inline std::atomic<std::int64_t> live_bytes = 0, peak_bytes = 0;
};

}  // namespace rehearse::models
