// A prepared op of a role: everything about it that is resolved once. Internal to `Operations`.
#pragma once
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "engine/base/errors.h"
#include "runtime/communication/packet_exchange.h"
#include "runtime/executor/operations/operations.h"
#include "runtime/kernels/optimizer.h"

namespace rehearse::runtime {

/// Elements [begin, end) of an update's operands, to all or none of which weight decay applies.
struct DecayRun {
  std::int64_t begin = 0, end = 0;
  bool decay = false;
};

struct Operations::Prepared {
  const program::Op* op = nullptr;
  Id id = none;
  std::vector<Operand> operands = {};  // in the order of op->refs
  std::vector<Operand> dies = {};      // values that may be freed after this op
  bool on_host = false;                // computes on the host in place of the accelerator
  /// The first operand in a slot; null: there is none.
  const Operand* at(program::Slot slot) const {
    for (const Operand& operand : operands)
      if (operand.slot == slot) return &operand;
    return nullptr;
  }
  /// The first operand in a slot. Throws ProgramError when there is none.
  const Operand& need(program::Slot slot) const {
    if (const Operand* operand = at(slot)) return *operand;
    throw ProgramError(fmt::format("op {} lacks operand {}", id, static_cast<int>(slot)));
  }

  // Compute
  models::Block* block = nullptr;
  models::PartedAttention* parted = nullptr;  // in place of `block`, of a part of attention
  model::AttendedBlock kv_block = {};
  std::vector<const Operand*> params = {};  // by parameter group of the segment
  std::vector<const Operand*> grads = {};   // the same; null: the pass does not compute it
  std::vector<at::Tensor> param_tensors = {}, grad_tensors = {};  // filled during a call only
  std::unique_ptr<bool[]> accumulate = {};  // by gradient: add to it instead of writing it
  std::vector<Operand> padding = {};        // padding of the gradient views that this op writes
  // Kernels that make or read packets
  std::uint64_t key = 0;        // key of the draws of stochastic rounding
  std::int64_t part_begin = 0;  // first element of the gradient that lies in the operand
  bool part = false;            // the operand is this rank's part of the gradient
  std::int64_t count = 0;       // number of packets
  // Update
  std::vector<DecayRun> runs = {};
  StepScalars* scalars = nullptr;  // in the device's memory
  // Communication
  Communicator* communicator = nullptr;
  int handle = -1, peer_member = -1;
  bool reduces = false;                          // all-reduce, reduce or reduce-scatter
  std::unique_ptr<PacketExchange> packets = {};  // for packets of varying size; null: other payload
  Id mailbox = none;                             // channel
  Id peer_rank = none;
};

}  // namespace rehearse::runtime
