// NCCL over Unix sockets: a socket for each pair of members. A collective goes through its root, or
// member 0. Each message begins with what the call is, which the receiver compares with its own.
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/kernels/elements.h"
#include "tests/devices/emulated/comm.h"

namespace {

using rehearse::runtime::from_bf16;
using rehearse::runtime::from_f16;
using rehearse::runtime::to_bf16;
using rehearse::runtime::to_f16;

std::size_t size_of(ncclDataType_t type) {
  if (type == ncclUint8) return 1;
  return type == ncclFloat16 || type == ncclBfloat16 ? 2 : 4;
}

/// Sockets that wait for members, by the path in an id.
std::mutex listening_lock;
std::map<std::string, int> listening;

thread_local int group_depth = 0;
thread_local std::vector<std::function<ncclResult_t()>> sends, others;  // of the open group
std::atomic<int> live = 0;                                              // communicators

/// sum += values, as a CPU of this project adds: rounded after each addition.
void add(void* sum, const void* values, std::size_t count, ncclDataType_t type) {
  const auto each = [&]<class T>(T*, auto up, auto down) {
    auto* const to = static_cast<T*>(sum);
    const auto* const from = static_cast<const T*>(values);
    for (std::size_t i = 0; i < count; ++i) to[i] = down(up(to[i]) + up(from[i]));
  };
  const auto same = [](auto x) { return x; };
  if (type == ncclFloat32)
    each(static_cast<float*>(nullptr), same, same);
  else if (type == ncclInt32)
    each(static_cast<std::uint32_t*>(nullptr), same, same);
  else if (type == ncclUint8)
    each(static_cast<std::uint8_t*>(nullptr), same,
         [](int x) { return static_cast<std::uint8_t>(x); });
  else if (type == ncclBfloat16)
    each(static_cast<std::uint16_t*>(nullptr), from_bf16, to_bf16);
  else
    each(static_cast<std::uint16_t*>(nullptr), from_f16, to_f16);
}

ncclResult_t now_or_in_group(std::vector<std::function<ncclResult_t()>>& list,
                             std::function<ncclResult_t()> call) {
  if (group_depth == 0) return call();
  list.push_back(std::move(call));
  return ncclSuccess;
}

enum Kind : std::int32_t { all_reduce, reduce, broadcast, gather, point };

/// Everybody's `count` elements, at member `root`, added up or one after the other.
ncclResult_t to_root(EmulatedComm* comm, const Call& call, const void* source, char* target,
                     ncclDataType_t type, bool adds) {
  const std::size_t bytes = static_cast<std::size_t>(call.count) * size_of(type);
  if (comm->rank != call.root) return comm->put(call.root, call, source, bytes);
  std::vector<char> own(bytes), sum, other(bytes);
  std::memcpy(own.data(), source, bytes);
  for (int member = 0; member < comm->ranks; ++member) {
    if (member != comm->rank)
      if (const ncclResult_t got = comm->get(member, call, other.data(), bytes)) return got;
    const std::vector<char>& part = member == comm->rank ? own : other;
    if (!adds)
      std::memcpy(target + static_cast<std::size_t>(member) * bytes, part.data(), bytes);
    else if (member == 0)
      sum = part;
    else
      add(sum.data(), part.data(), static_cast<std::size_t>(call.count), type);
  }
  if (adds) std::memcpy(target, sum.data(), bytes);
  return ncclSuccess;
}

ncclResult_t from_root(EmulatedComm* comm, const Call& call, const void* source, void* target,
                       std::size_t bytes) {
  if (comm->rank != call.root) return comm->get(call.root, call, target, bytes);
  for (int member = 0; member < comm->ranks; ++member)
    if (member != comm->rank)
      if (const ncclResult_t put = comm->put(member, call, source, bytes)) return put;
  if (source != target) std::memmove(target, source, bytes);
  return ncclSuccess;
}

Call next(EmulatedComm* comm, Kind kind, std::size_t count, ncclDataType_t type, int root) {
  return {.kind = kind,
          .type = type,
          .root = root,
          .number = comm->number++,
          .count = static_cast<std::int64_t>(count)};
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "an error of the emulated NCCL";
}
const char* ncclGetLastError(ncclComm_t comm) {
  return comm == nullptr ? nullptr : comm->error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::string folder = "/tmp/rehearse-nccl-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return ncclSystemError;
  const std::string path = folder + "/0";
  const int fd = listen_at(path);
  if (fd < 0) return ncclSystemError;
  std::strncpy(id->internal, path.c_str(), sizeof id->internal - 1);
  const std::lock_guard lock(listening_lock);
  listening[path] = fd;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  auto* const comm = *out = new EmulatedComm;
  ++live;
  comm->rank = rank;
  comm->ranks = ranks;
  comm->peers.assign(static_cast<std::size_t>(ranks), -1);
  comm->sent.resize(static_cast<std::size_t>(ranks));
  comm->received.resize(static_cast<std::size_t>(ranks));
  int listener = -1;
  if (rank == 0) {
    const std::lock_guard lock(listening_lock);
    listener = listening.at(id.internal);
    listening.erase(id.internal);
  }
  comm->connecting = std::thread(connect_members, comm, std::string(id.internal), listener);
  if (config->blocking == 0) return ncclInProgress;
  comm->connecting.join();
  return comm->state;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state;
  return ncclSuccess;
}

/// The other members' ends come when they come: NCCL's flush has nothing to wait for here.
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclInProgress; }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  --live;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  while (group_depth == 0 && live > 1 && std::getenv("REHEARSE_EMULATED_ABORT") != nullptr) pause();
  for (const int peer : comm->peers)
    if (peer >= 0) shutdown(peer, SHUT_RDWR);
  return ncclCommDestroy(comm);
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  // Sends beside receives, or two members that send to each other would fill their sockets.
  ncclResult_t sending = ncclSuccess, result = ncclSuccess;
  std::thread sender([&sending, list = std::exchange(sends, {})] {
    for (const auto& call : list)
      if (sending == ncclSuccess) sending = call();
  });
  for (const auto& call : std::exchange(others, {}))
    if (result == ncclSuccess) result = call();
  sender.join();
  return result != ncclSuccess ? result : sending;
}

ncclResult_t ncclAllReduce(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t) {
  return now_or_in_group(others, [=] {
    const Call call = next(comm, all_reduce, count, type, 0);
    if (const auto bad = to_root(comm, call, source, static_cast<char*>(target), type, true))
      return bad;
    return from_root(comm, call, target, target, count * size_of(type));
  });
}

ncclResult_t ncclReduce(const void* source, void* target, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t, int root, ncclComm_t comm, cudaStream_t) {
  return now_or_in_group(others, [=] {
    return to_root(comm, next(comm, reduce, count, type, root), source, static_cast<char*>(target),
                   type, true);
  });
}

ncclResult_t ncclReduceScatter(const void* source, void* target, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t, ncclComm_t comm, cudaStream_t) {
  return now_or_in_group(others, [=] {
    const std::size_t bytes = count * size_of(type);
    // A part in place of the whole must be read before it is written.
    const std::vector<char> whole(
        static_cast<const char*>(source),
        static_cast<const char*>(source) + bytes * static_cast<std::size_t>(comm->ranks));
    for (int member = 0; member < comm->ranks; ++member)
      if (const auto bad = to_root(comm, next(comm, reduce, count, type, member),
                                   whole.data() + static_cast<std::size_t>(member) * bytes,
                                   static_cast<char*>(target), type, true))
        return bad;
    return ncclSuccess;
  });
}

ncclResult_t ncclAllGather(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t) {
  return now_or_in_group(others, [=] {
    const Call call = next(comm, gather, count, type, 0);
    if (const auto bad = to_root(comm, call, source, static_cast<char*>(target), type, false))
      return bad;
    return from_root(comm, call, target, target,
                     count * size_of(type) * static_cast<std::size_t>(comm->ranks));
  });
}

ncclResult_t ncclBroadcast(const void* source, void* target, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t) {
  return now_or_in_group(others, [=] {
    return from_root(comm, next(comm, broadcast, count, type, root), source, target,
                     count * size_of(type));
  });
}

ncclResult_t ncclSend(const void* source, std::size_t count, ncclDataType_t type, int to,
                      ncclComm_t comm, cudaStream_t) {
  return now_or_in_group(sends, [=] {
    const Call call{.kind = point,
                    .type = type,
                    .root = to,
                    .number = comm->sent[static_cast<std::size_t>(to)]++,
                    .count = static_cast<std::int64_t>(count)};
    return comm->put(to, call, source, count * size_of(type));
  });
}

ncclResult_t ncclRecv(void* target, std::size_t count, ncclDataType_t type, int from,
                      ncclComm_t comm, cudaStream_t) {
  return now_or_in_group(others, [=] {
    const Call call{.kind = point,
                    .type = type,
                    .root = comm->rank,
                    .number = comm->received[static_cast<std::size_t>(from)]++,
                    .count = static_cast<std::int64_t>(count)};
    return comm->get(from, call, target, count * size_of(type));
  });
}
