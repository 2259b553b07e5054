// A communicator over NCCL: a thin, non-blocking layer over nccl.h, so that a peer that never comes
// or dies is noticed. Collectives are queued on the stream of the body that runs them. The host
// issues all NCCL ops in the program's order, which all ranks share (runtime::Turnstile): two
// communicators that are used from two streams in different orders can deadlock (nccl issues 783
// and 1766).
#pragma once
#include <nccl.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/communication/communicator.h"
#include "runtime/cuda/watch.h"

namespace rehearse::runtime {

class NcclCommunicator : public Communicator {
 public:
  /// `wire`: see Accelerator::communicator.
  NcclCommunicator(std::shared_ptr<Watch> watch, std::string wire, std::vector<Id> ranks,
                   int member);
  ~NcclCommunicator() override;

  /// On the rank's device. Throws BackendError.
  void connect() override;
  /// NCCL chooses its algorithms itself, whatever the spec names.
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
  void move_parts(const CollectiveSpec& spec, char* source, char* target) const;

  std::shared_ptr<Watch> watch_;
  ncclComm_t comm_ = nullptr;
  std::vector<CollectiveSpec> specs_ = {};
  std::atomic<std::int64_t> sent_ = 0, received_ = 0;
};

}  // namespace rehearse::runtime
