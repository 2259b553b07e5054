// Turns errors of CUDA and NCCL into BackendError, with the call and the library's own words.
#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

namespace rehearse::runtime {

void check_cuda(cudaError_t error, const char* call);
std::string nccl_text(ncclResult_t result, ncclComm_t comm);

}  // namespace rehearse::runtime
