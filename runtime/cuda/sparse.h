// The device's kernels of sparse exchanges: the functions `select` of exact top-k and `scatter_add`
// of runtime/kernels/sparsify.h, with the same bits. They only queue their work.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/cuda/numbers.h"
#include "runtime/kernels/elements.h"

namespace rehearse::runtime {

/// As program::Coding, without draws.
enum class CudaCoding : std::uint8_t { index32, bitmap, delta16 };

/// A packet of `keep` of `of` entries.
struct CudaPacket {
  CudaCoding coding = CudaCoding::index32;
  std::int64_t of = 0, keep = 0;
};

struct CudaSelect {
  CudaPacket packet = {};
  NormAndScale gradients = {};
  const void* gradient = nullptr;
  CudaNumber type = CudaNumber::f32;
  float* residual = nullptr;
  bool cleared = false;  // what the residual holds counts as 0
  bool use = true;       // entries are chosen from gradient + residual; false: from the gradient
  float beta = 1;        // factor on the old residual in the new one
  std::byte* target = nullptr;
};
/// Bytes of working memory of a select that lists at most `listed` entries (see select.cu).
std::int64_t select_bytes(const CudaPacket& packet, std::int64_t listed);
cudaError_t queue_select(const CudaSelect& select, std::int64_t listed, std::byte* working,
                         cudaStream_t stream);

struct CudaScatter {
  CudaPacket packet = {};
  NormAndScale gradients = {};
  const std::byte* packets = nullptr;
  std::int64_t count = 0, room = 0;  // of packets, and the bytes from one to the next
  std::int64_t begin = 0, end = 0;   // the entries that `target` holds
  float* target = nullptr;
};
std::int64_t scatter_bytes(const CudaPacket& packet);
/// A packet that contradicts itself makes every entry of `target` NaN: the host, which would refuse
/// it, is ahead of the device.
cudaError_t queue_scatter(const CudaScatter& scatter, std::byte* working, cudaStream_t stream);

}  // namespace rehearse::runtime
