// An op of a role as `Operations` keeps it: everything that is resolved once. Internal.
#pragma once
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "engine/base/errors.h"
#include "runtime/communication/packet_exchange.h"
#include "runtime/execution/operations.h"

namespace rehearse::runtime {

/// Flat interval [begin, end) of an update whose tensors all decay, or all do not.
struct DecayRun {
  std::int64_t begin = 0, end = 0;
  bool decay = false;
};

struct Operations::Prepared {
  const program::Op* op = nullptr;
  Id id = none;
  std::vector<Operand> operands = {};  // as refs
  std::vector<Operand> dies = {};
  const Operand* at(program::Slot slot) const {
    for (const Operand& operand : operands)
      if (operand.slot == slot) return &operand;
    return nullptr;
  }
  const Operand& need(program::Slot slot) const {
    if (const Operand* operand = at(slot)) return *operand;
    throw ProgramError(fmt::format("op {} lacks operand {}", id, static_cast<int>(slot)));
  }

  // Compute
  models::Block* block = nullptr;
  std::vector<const Operand*> params = {}, grads = {};
  std::vector<at::Tensor> param_tensors = {}, grad_tensors = {};  // scratch of one call
  std::unique_ptr<bool[]> accumulate = {};
  std::vector<Operand> padding = {};  // behind the groups in gradient views that this op writes
  // Select and scatter_add
  std::uint64_t key = 0;        // of a random draw
  std::int64_t part_begin = 0;  // where the target's part of a gradient begins
  std::int64_t count = 0;       // packets
  // Update
  std::vector<DecayRun> runs = {};
  // Communication
  Communicator* communicator = nullptr;
  int handle = -1, peer_member = -1;
  bool reduces = false;
  std::unique_ptr<PacketExchange> packets = {};  // of a collective whose payload varies in size
  Id mailbox = none;                             // channel
  Id peer_rank = none;
};

}  // namespace rehearse::runtime
