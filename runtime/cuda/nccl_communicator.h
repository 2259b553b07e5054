// A communicator over NCCL: a thin, non-blocking layer over nccl.h, so that a peer that never comes
// or dies is noticed. Collectives are queued on one stream, in the order in which they are run. The
// host issues all NCCL ops in the program's order, which all ranks share: two communicators that
// are used from two streams in different orders can deadlock (nccl issues 783 and 1766).
#pragma once
#include <nccl.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/communication/communicator.h"
#include "runtime/cuda/cuda_stream.h"
#include "runtime/cuda/watch.h"

namespace rehearse::runtime {

class NcclCommunicator : public Communicator {
 public:
  /// All members make it together, after setting the current device. Throws BackendError.
  NcclCommunicator(std::shared_ptr<Watch> watch, std::string channel, std::vector<Id> ranks,
                   int member, CudaStream& stream);
  ~NcclCommunicator() override;

  /// Throws InputError for any algorithm but `automatic`, because NCCL chooses its own.
  int prepare(const CollectiveSpec& spec) override;
  void run(int handle, void* source, void* target) override;
  void send(Buffer buffer, int to) override;
  void recv(Buffer buffer, int from) override;
  void barrier() override;
  /// What rings would send: NCCL does not tell what it sent.
  Traffic traffic() const override;
  std::int64_t scratch_bytes() const override { return 0; }

 private:
  void check(ncclResult_t result, const char* call) const;
  void check_in_group(ncclResult_t result, const char* call) const;
  void settle(const char* call) const;
  void scatter(const CollectiveSpec& spec, char* source, char* target) const;
  void gather(const CollectiveSpec& spec, char* source, char* target) const;
  void rotate(const CollectiveSpec& spec, char* source, char* target) const;
  void exchange_parts(const CollectiveSpec& spec, char* source, char* target) const;

  std::shared_ptr<Watch> watch_;
  CudaStream& stream_;
  ncclComm_t comm_ = nullptr;
  int* token_ = nullptr;  // one i32 on the device, which barriers all-reduce
  std::vector<CollectiveSpec> specs_ = {};
  std::atomic<std::int64_t> sent_ = 0, received_ = 0;
};

}  // namespace rehearse::runtime
