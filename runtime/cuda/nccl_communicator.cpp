#include "runtime/cuda/nccl_communicator.h"

#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/cuda/check.h"

namespace rehearse::runtime {
namespace {

ncclDataType_t type_of(program::DType dtype) {
  switch (dtype) {
    case program::DType::f32:
      return ncclFloat32;
    case program::DType::bf16:
      return ncclBfloat16;
    case program::DType::f16:
      return ncclFloat16;
    case program::DType::i32:
      return ncclInt32;
    case program::DType::u8:
      return ncclUint8;
  }
  return ncclUint8;
}

/// The id of the NCCL communicator: the first member makes it and publishes it in the control
/// plane, where the others read it.
ncclUniqueId agree_on_id(Control& control, const std::string& channel, const std::vector<Id>& ranks,
                         int member) {
  const std::string key = fmt::format("nccl/{}/{}", channel, fmt::join(ranks, ","));
  ncclUniqueId id = {};
  if (member == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) {
      throw BackendError(
          fmt::format("{}: ncclGetUniqueId: {}", channel, nccl_text(result, nullptr)));
    }
    control.publish(key, std::string(id.internal, sizeof id.internal));
    return id;
  }
  const std::string text = control.await(key);
  if (text.size() != sizeof id.internal) {
    throw BackendError(fmt::format("{}: rank {} runs another version of NCCL", channel, ranks[0]));
  }
  std::memcpy(id.internal, text.data(), sizeof id.internal);
  return id;
}

/// The stream of the body that this thread runs.
cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

std::int64_t part(const CollectiveSpec& spec, int i, int n) { return i * spec.elements / n; }

}  // namespace

void NcclCommunicator::check(ncclResult_t result, const char* call) const {
  if (result == ncclInProgress) {
    settle(call);
    return;
  }
  check_in_group(result, call);
}

/// Between ncclGroupStart and ncclGroupEnd no call has started yet, so there is nothing to wait
/// for.
void NcclCommunicator::check_in_group(ncclResult_t result, const char* call) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const std::string text = fmt::format("{}: {}: {}", channel(), call, nccl_text(result, comm_));
  // A broken connection may have its cause on another rank, so ask the control plane. A wrong
  // argument is an error of this rank.
  if (result == ncclRemoteError || result == ncclSystemError) watch_->control().blame(text);
  throw BackendError(text);
}

/// Waits until a call on the non-blocking communicator has taken effect. Only then may another call
/// follow.
void NcclCommunicator::settle(const char* call) const {
  ncclResult_t state = ncclInProgress;
  watch_->wait(
      [&] {
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        if (asked != ncclSuccess) state = asked;
        return state != ncclInProgress;
      },
      fmt::format("{}: {}", channel(), call));
  if (state != ncclSuccess) check(state, call);
}

NcclCommunicator::NcclCommunicator(std::shared_ptr<Watch> watch, std::string wire,
                                   std::vector<Id> ranks, int member)
    : Communicator(std::move(wire), std::move(ranks), member), watch_(std::move(watch)) {}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ != nullptr) watch_->retire(comm_);
}

void NcclCommunicator::connect() {
  if (comm_ != nullptr) return;
  const ncclUniqueId id = agree_on_id(watch_->control(), channel(), ranks(), member());
  const std::lock_guard lock(watch_->calls());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = channel().c_str();
  const ncclResult_t result = ncclCommInitRankConfig(&comm_, size(), id, member(), &config);
  if (comm_ == nullptr)
    throw BackendError(
        fmt::format("{}: ncclCommInitRankConfig: {}", channel(), nccl_text(result, nullptr)));
  watch_->add(comm_, channel());
  check(result, "ncclCommInitRankConfig");
}

int NcclCommunicator::prepare(const CollectiveSpec& spec) {
  const auto known = std::ranges::find(specs_, spec);
  if (known != specs_.end()) return static_cast<int>(known - specs_.begin());
  specs_.push_back(spec);
  return static_cast<int>(specs_.size()) - 1;
}

void NcclCommunicator::scatter(const CollectiveSpec& spec, char* source, char* target) const {
  const auto type = type_of(spec.dtype);
  const int n = size();
  if (spec.elements % n == 0) {
    check(ncclReduceScatter(source, target, static_cast<std::size_t>(spec.elements / n), type,
                            ncclSum, comm_, stream()),
          "ncclReduceScatter");
    return;
  }
  // Unequal parts: one reduce to each owner, fused by the NCCL group.
  check_in_group(ncclGroupStart(), "ncclGroupStart");
  for (int i = 0; i < n; ++i) {
    const std::int64_t begin = part(spec, i, n);
    const auto count = static_cast<std::size_t>(part(spec, i + 1, n) - begin);
    if (count == 0) continue;
    check_in_group(ncclReduce(source + begin * size_of(spec.dtype), target, count, type, ncclSum, i,
                              comm_, stream()),
                   "ncclReduce");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
}

void NcclCommunicator::gather(const CollectiveSpec& spec, char* source, char* target) const {
  const auto type = type_of(spec.dtype);
  const int n = size();
  if (spec.elements % n == 0) {
    check(ncclAllGather(source, target, static_cast<std::size_t>(spec.elements / n), type, comm_,
                        stream()),
          "ncclAllGather");
    return;
  }
  check_in_group(ncclGroupStart(), "ncclGroupStart");
  for (int i = 0; i < n; ++i) {
    const std::int64_t begin = part(spec, i, n);
    const auto count = static_cast<std::size_t>(part(spec, i + 1, n) - begin);
    if (count == 0) continue;
    check_in_group(ncclBroadcast(source, target + begin * size_of(spec.dtype), count, type, i,
                                 comm_, stream()),
                   "ncclBroadcast");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
}

/// NCCL's own form of an all-to-all: sends and receives in one group, which it runs at once.
void NcclCommunicator::exchange_parts(const CollectiveSpec& spec, char* source,
                                      char* target) const {
  const auto type = type_of(spec.dtype);
  const auto count = static_cast<std::size_t>(spec.elements / size());
  const std::size_t bytes = count * static_cast<std::size_t>(size_of(spec.dtype));
  check_in_group(ncclGroupStart(), "ncclGroupStart");
  for (int i = 0; i < size(); ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * bytes;
    check_in_group(ncclSend(source + at, count, type, i, comm_, stream()), "ncclSend");
    check_in_group(ncclRecv(target + at, count, type, i, comm_, stream()), "ncclRecv");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
}

/// The root exchanges a part with each other member, in one group.
void NcclCommunicator::move_parts(const CollectiveSpec& spec, char* source, char* target) const {
  const auto type = type_of(spec.dtype);
  const bool gather = spec.move == program::Move::gather, root = member() == spec.root;
  check_in_group(ncclGroupStart(), "ncclGroupStart");
  for (int i = 0; i < size(); ++i) {
    if (root ? i == member() && source == target : i != member()) continue;
    const std::int64_t begin = part(spec, i, size());
    const auto count = static_cast<std::size_t>(part(spec, i + 1, size()) - begin);
    if (count == 0) continue;
    const std::int64_t at = begin * size_of(spec.dtype);
    const bool own = i == member();
    if (gather ? own : root)
      check_in_group(ncclSend(gather ? source : source + at, count, type, gather ? spec.root : i,
                              comm_, stream()),
                     "ncclSend");
    if (gather ? root : own)
      check_in_group(ncclRecv(gather ? target + at : target, count, type, gather ? i : spec.root,
                              comm_, stream()),
                     "ncclRecv");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
}

/// A send and a receive in one group, which NCCL runs at once.
void NcclCommunicator::rotate(const CollectiveSpec& spec, char* source, char* target) const {
  const auto type = type_of(spec.dtype);
  const auto count = static_cast<std::size_t>(spec.elements);
  const int to = (member() + spec.root) % size(),
            from = (member() + size() - spec.root % size()) % size();
  check_in_group(ncclGroupStart(), "ncclGroupStart");
  check_in_group(ncclSend(source, count, type, to, comm_, stream()), "ncclSend");
  check_in_group(ncclRecv(target, count, type, from, comm_, stream()), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
}

void NcclCommunicator::run(int handle, void* source, void* target) {
  const std::lock_guard lock(watch_->calls());
  const CollectiveSpec& spec = specs_[static_cast<std::size_t>(handle)];
  const auto count = static_cast<std::size_t>(spec.elements);
  const auto type = type_of(spec.dtype);
  const std::int64_t bytes = spec.elements * size_of(spec.dtype);
  const std::int64_t share = bytes * (size() - 1) / size();
  std::int64_t moved = share;
  switch (spec.move) {
    case program::Move::all_reduce:
      moved = 2 * share;
      check(ncclAllReduce(source, target, count, type, ncclSum, comm_, stream()), "ncclAllReduce");
      break;
    case program::Move::reduce_scatter:
      scatter(spec, static_cast<char*>(source), static_cast<char*>(target));
      break;
    case program::Move::all_gather:
      gather(spec, static_cast<char*>(source), static_cast<char*>(target));
      break;
    case program::Move::all_to_all:
      exchange_parts(spec, static_cast<char*>(source), static_cast<char*>(target));
      break;
    case program::Move::rotate:
      moved = bytes;
      rotate(spec, static_cast<char*>(source), static_cast<char*>(target));
      break;
    case program::Move::gather:
    case program::Move::scatter:
      moved = part(spec, member() + 1, size()) - part(spec, member(), size());
      if (member() == spec.root) moved = spec.elements - moved;
      moved *= size_of(spec.dtype);
      move_parts(spec, static_cast<char*>(source), static_cast<char*>(target));
      break;
    case program::Move::broadcast:
      moved = bytes;
      check(ncclBroadcast(source, target, count, type, spec.root, comm_, stream()),
            "ncclBroadcast");
      break;
    case program::Move::reduce:
      moved = bytes;
      check(ncclReduce(source, target, count, type, ncclSum, spec.root, comm_, stream()),
            "ncclReduce");
      break;
  }
  sent_.fetch_add(moved, std::memory_order_relaxed);
  received_.fetch_add(moved, std::memory_order_relaxed);
}

void NcclCommunicator::send(Buffer buffer, int to) {
  const std::lock_guard lock(watch_->calls());
  check(ncclSend(buffer.data, static_cast<std::size_t>(buffer.elements), type_of(buffer.dtype), to,
                 comm_, stream()),
        "ncclSend");
  sent_.fetch_add(buffer.bytes(), std::memory_order_relaxed);
}

void NcclCommunicator::recv(Buffer buffer, int from) {
  const std::lock_guard lock(watch_->calls());
  check(ncclRecv(buffer.data, static_cast<std::size_t>(buffer.elements), type_of(buffer.dtype),
                 from, comm_, stream()),
        "ncclRecv");
  received_.fetch_add(buffer.bytes(), std::memory_order_relaxed);
}

void NcclCommunicator::barrier() {
  throw ProgramError(channel() + ": ranks meet in the control plane, not through NCCL");
}

Traffic NcclCommunicator::traffic() const { return {sent_.load(), received_.load()}; }

}  // namespace rehearse::runtime
