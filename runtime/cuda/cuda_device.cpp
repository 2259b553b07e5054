#include "runtime/cuda/cuda_device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/control/membership/members.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/low_rank.h"
#include "runtime/cuda/nccl_communicator.h"
#include "runtime/cuda/quantise.h"
#include "runtime/cuda/sparse.h"

namespace rehearse::runtime {
namespace {

/// The stream of the body that this thread runs.
cudaStream_t current() { return c10::cuda::getCurrentCUDAStream().stream(); }

int choose_device(const Environment& environment) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count == 0) throw BackendError("there is no CUDA device (CUDA_VISIBLE_DEVICES hides any)");
  return environment.local_rank % count;
}

/// Working memory of a body's kernels. What is queued next may overwrite it.
at::Tensor working_memory(std::int64_t bytes) {
  const c10::Device device = c10::cuda::getCurrentCUDAStream().device();
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
}

void set_default(const char* variable, const std::string& value) {
  setenv(variable, value.c_str(), 0);
}

}  // namespace

CudaDevice::CudaDevice(Control& control)
    : watch_(std::make_shared<Watch>(control)),
      index_(choose_device(control.environment())),
      allocated_(std::make_shared<Most>()) {
  check_cuda(cudaSetDevice(index_), "cudaSetDevice");
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index_));
  // Kernels of several communicators run in the order in which the host issues them.
  set_default("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  share_device();
}

/// NCCL refuses two ranks on one device ("Duplicate GPU detected") unless they seem to be on two
/// hosts, which then talk over sockets. That is for trials: NVIDIA does not support it (nccl issue
/// 418).
void CudaDevice::share_device() {
  Control& control = watch_->control();
  std::array<char, 32> bus = {};
  check_cuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index_),
             "cudaDeviceGetPCIBusId");
  const auto rank = static_cast<std::size_t>(control.environment().rank);
  const std::string& host = Members::of(control).at(rank).host;
  const std::vector<std::string> places =
      control.gather("GPU", fmt::format("{} {}", host, bus.data()));
  if (std::ranges::count(places, places.at(rank)) == 1) return;
  set_default("NCCL_HOSTID", fmt::format("{}-rank-{}", host, rank));
  set_default("NCCL_NET", "Socket");
  set_default("NCCL_IB_DISABLE", "1");
  set_default("NCCL_SOCKET_IFNAME", "lo");
  set_default("NCCL_MAX_CTAS", "1");
  set_default("NCCL_NVLS_ENABLE", "0");
}

std::string CudaDevice::name() const {
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
  return fmt::format("cuda:{} ({})", index_, properties.name);
}

std::unique_ptr<Stream> CudaDevice::stream(const std::string&) {
  return std::make_unique<CudaStream>(watch_, index_, false);
}

std::shared_ptr<Event> CudaDevice::event(Id) { return std::make_shared<CudaEvent>(watch_, false); }

std::shared_ptr<Event> CudaDevice::timed_event(Id) {
  return std::make_shared<CudaEvent>(watch_, true);
}

std::shared_ptr<std::byte> CudaDevice::allocate(std::int64_t bytes) {
  void* memory = nullptr;
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  const cudaError_t error = cudaMalloc(&memory, size);
  if (error == cudaErrorMemoryAllocation) {
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw BackendError(
        fmt::format("{}: no room for {} bytes, {} of {} are free", name(), size, free, total));
  }
  check_cuda(error, "cudaMalloc");
  std::shared_ptr<std::byte> out(static_cast<std::byte*>(memory),
                                 [count = allocated_, size](std::byte* at) {
                                   cudaFree(at);
                                   count->now -= static_cast<std::int64_t>(size);
                                 });
  allocated_->now += static_cast<std::int64_t>(size);
  allocated_->most = std::max(allocated_->most.load(), allocated_->now.load());
  check_cuda(cudaMemset(memory, 0, size), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return out;
}

std::shared_ptr<std::byte> CudaDevice::pinned(std::int64_t bytes) {
  void* memory = nullptr;
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  check_cuda(cudaHostAlloc(&memory, size, cudaHostAllocPortable | cudaHostAllocMapped),
             "cudaHostAlloc");
  std::memset(memory, 0, size);
  return {static_cast<std::byte*>(memory), [](std::byte* at) { cudaFreeHost(at); }};
}

std::int64_t CudaDevice::peak_bytes() {
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index_));
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocated_->most + stats.allocated_bytes[all].peak;
}

void CudaDevice::fetch(const std::byte* inside, std::byte* to, std::int64_t bytes) {
  check_cuda(cudaMemcpy(to, inside, static_cast<std::size_t>(bytes), cudaMemcpyDefault),
             "cudaMemcpy");
}

void CudaDevice::store(std::byte* inside, const std::byte* from, std::int64_t bytes) {
  check_cuda(cudaMemcpy(inside, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault),
             "cudaMemcpy");
}

void CudaDevice::used(const void* memory) {
  if (memory == nullptr) return;
  // The allocator knows memory by the handle that it gave out, of which this is a copy.
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  auto* const address = const_cast<void*>(memory);
  c10::DataPtr handle(address, address, c10::cuda::CUDACachingAllocator::get()->raw_deleter(),
                      stream.device());
  c10::cuda::CUDACachingAllocator::recordStream(handle, stream);
  (void)handle.release_context();
}

int CudaDevice::cuda_index() const {
  const c10::Device device = c10::cuda::getCurrentCUDAStream().device();
  return device.is_cuda() ? device.index() : -1;
}

void CudaDevice::copy(void* to, const void* from, std::int64_t bytes) {
  check_cuda(
      cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, current()),
      "cudaMemcpyAsync");
}

void CudaDevice::finish() { wait_for(*watch_, current()); }

bool CudaDevice::has(const program::Kernel& kernel) const {
  switch (kernel.kind) {
    case program::KernelKind::measure:
    case program::KernelKind::rescale:
    case program::KernelKind::cast:
    case program::KernelKind::observe:
    case program::KernelKind::quantise:
    case program::KernelKind::dequantise:
    case program::KernelKind::momentum:
    case program::KernelKind::project:
    case program::KernelKind::orthonormalise:
    case program::KernelKind::project_back:
    case program::KernelKind::expand:
    case program::KernelKind::weigh:
    case program::KernelKind::drift:
    case program::KernelKind::outer_step:
    case program::KernelKind::mix:
      return true;
    case program::KernelKind::select:
      return kernel.selector == program::Selector::top_k;
    case program::KernelKind::scatter_add:
      return kernel.selector != program::Selector::threshold &&
             kernel.coding != program::Coding::values;
    default:
      return false;
  }
}

void CudaDevice::measure(std::span<const Values> sources, double scale, bool add, float* norm) {
  std::int64_t blocks = 1;
  for (const Values& values : sources) blocks = std::max(blocks, squares_blocks(values.elements));
  const c10::Device device = c10::cuda::getCurrentCUDAStream().device();
  const at::Tensor lanes =
      at::empty({blocks * squares_lanes}, at::TensorOptions(at::kFloat).device(device));
  const at::Tensor sums = at::empty({blocks + 1}, at::TensorOptions(at::kDouble).device(device));
  auto* const total = sums.data_ptr<double>() + blocks;
  bool first = true;
  for (const Values& values : sources)
    check_cuda(queue_squares(values, std::exchange(first, false), lanes.data_ptr<float>(),
                             sums.data_ptr<double>(), total, current()),
               "the kernel of a norm");
  check_cuda(queue_norm(total, scale, add, norm, current()), "the kernel of a norm");
}

void CudaDevice::decide(const OptimizerStep& step, const NormAndScale& gradients, double max_norm,
                        SkipCount* skips, StepScalars* scalars, double* square_norm) {
  check_cuda(
      queue_decide(decision_of(step, max_norm), gradients, skips, scalars, square_norm, current()),
      "the kernel of a decision");
}

void CudaDevice::update(const OptimizerStep& step, const OptimizerInterval& interval, bool decay,
                        const StepScalars* scalars) {
  check_cuda(queue_update(step, interval, decay, scalars, current()), "the kernel of an update");
}

void CudaDevice::rescale(const float* squares, float* state) {
  check_cuda(queue_rescale(squares, state, current()), "the kernel of a loss scale");
}

void CudaDevice::observe(const Values& values, int stride, const NormAndScale& gradients,
                         float* state) {
  const at::Tensor too_large = working_memory(sizeof(std::uint32_t));
  check_cuda(queue_observe(values, stride, gradients, state,
                           static_cast<std::uint32_t*>(too_large.data_ptr()), current()),
             "the kernel of an observation");
}

void CudaDevice::average(const Average& work) {
  check_cuda(queue_average(work, current()), "a kernel that averages weights");
}

void CudaDevice::select(const program::Kernel& kernel, const SelectStep& step, const void* gradient,
                        program::DType type, float* residual, float* /*threshold*/,
                        std::byte* packet) {
  const at::Tensor working = working_memory(select_bytes(kernel));
  check_cuda(queue_select(kernel, step, gradient, type, residual, packet,
                          static_cast<std::byte*>(working.data_ptr()), current()),
             "the kernels of a select");
}

void CudaDevice::scatter_add(const program::Kernel& kernel, const SelectStep& step,
                             const std::byte* packets, std::int64_t count, std::int64_t begin,
                             std::int64_t end, float* target) {
  const at::Tensor working = working_memory(scatter_bytes(kernel));
  check_cuda(queue_scatter(kernel, step, packets, count, begin, end, target,
                           static_cast<std::byte*>(working.data_ptr()), current()),
             "the kernels of a scatter_add");
}

void CudaDevice::quantise(const program::Kernel& kernel, RandomKey key, const void* source,
                          program::DType type, std::int64_t begin, std::int64_t parts,
                          float* residual, std::byte* packets) {
  const at::Tensor working = working_memory(quantise_bytes(kernel, parts));
  check_cuda(queue_quantise(kernel, key, source, type, begin, parts, residual, packets,
                            static_cast<std::byte*>(working.data_ptr()), current()),
             "the kernels of a quantise");
}

void CudaDevice::dequantise(const program::Kernel& kernel, const std::byte* packets,
                            std::int64_t count, float* target) {
  check_cuda(queue_dequantise(kernel, packets, count, target, current()),
             "the kernel of a dequantise");
}

void CudaDevice::dequantise_sum(const program::Kernel& kernel, const std::byte* packets,
                                std::int64_t count, std::int64_t begin, float* target) {
  check_cuda(queue_dequantise_sum(kernel, packets, count, begin, target, current()),
             "the kernel of a dequantise");
}

void CudaDevice::project(const program::Factors& size, const float* matrix, const float* right,
                         float* left) {
  check_cuda(queue_project(size, matrix, right, left, current()), "a kernel on factors");
}

void CudaDevice::orthonormalise(const program::Factors& size, float* left) {
  check_cuda(queue_orthonormalise(size, left, current()), "a kernel on factors");
}

void CudaDevice::project_back(const program::Factors& size, const float* matrix, const float* left,
                              float* right) {
  check_cuda(queue_project_back(size, matrix, left, right, current()), "a kernel on factors");
}

void CudaDevice::expand(const program::Factors& size, const float* left, const float* right,
                        float scale, float* target, float* residual) {
  check_cuda(queue_expand(size, left, right, scale, target, residual, current()),
             "a kernel on factors");
}

void CudaDevice::add_to_residual(const float* source, float* residual, std::int64_t elements) {
  check_cuda(queue_add(source, residual, elements, current()), "a kernel on factors");
}

void CudaDevice::blend_momentum(double beta1, double scale, const float* moment, float* target,
                                std::int64_t elements) {
  check_cuda(queue_blend(beta1, scale, moment, target, elements, current()),
             "the kernel of a momentum");
}

std::unique_ptr<Communicator> CudaDevice::communicator(const std::string& wire,
                                                       std::vector<Id> ranks) {
  const auto rank = static_cast<Id>(watch_->control().environment().rank);
  const auto place = std::ranges::find(ranks, rank);
  if (place == ranks.end())
    throw ProgramError(fmt::format("{}: rank {} is not in its group", wire, rank));
  const auto member = static_cast<int>(place - ranks.begin());
  return std::make_unique<NcclCommunicator>(watch_, wire, std::move(ranks), member);
}

}  // namespace rehearse::runtime
