#include "runtime/cuda/check.h"

#include <fmt/format.h>

#include "engine/base/errors.h"

namespace rehearse::runtime {

void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, else the next unrelated call reports it again
  throw BackendError(
      fmt::format("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error)));
}

std::string nccl_text(ncclResult_t result, ncclComm_t comm) {
  const char* last = ncclGetLastError(comm);
  return last != nullptr && last[0] != 0 ? fmt::format("{} ({})", ncclGetErrorString(result), last)
                                         : ncclGetErrorString(result);
}

}  // namespace rehearse::runtime
