#include "runtime/executor/rank_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/errors.h"
#include "runtime/device/accelerator.h"
#include "runtime/executor/host_copies.h"

namespace rehearse::runtime {

at::ScalarType scalar_type(program::DType type) {
  switch (type) {
    case program::DType::f32:
      return at::kFloat;
    case program::DType::bf16:
      return at::kBFloat16;
    case program::DType::f16:
      return at::kHalf;
    case program::DType::i32:
      return at::kInt;
    case program::DType::u8:
      break;
  }
  return at::kByte;
}

at::Device torch_device(Device& device) {
  const Accelerator* const accelerator = device.accelerator();
  const int cuda = accelerator == nullptr ? -1 : accelerator->cuda_index();
  return cuda < 0 ? at::Device(at::kCPU)
                  : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(cuda));
}

namespace {

/// A tensor on `place` that holds on to its memory.
at::Tensor tensor_of(std::shared_ptr<std::byte> memory, at::IntArrayRef sizes, at::ScalarType type,
                     at::Device place) {
  void* const address = memory.get();
  return at::for_blob(address, sizes)
      .deleter([held = std::move(memory)](void*) {})
      .options(at::TensorOptions(type).device(place))
      .target_device(place)
      .make_tensor();
}

}  // namespace

at::Tensor device_tensor(Device& device, at::IntArrayRef sizes, at::ScalarType type) {
  const std::int64_t bytes = c10::multiply_integers(sizes) * at::elementSize(type);
  return tensor_of(device.allocate(bytes), sizes, type, torch_device(device));
}

void store(Device& device, const at::Tensor& target, const at::Tensor& values) {
  device.store(static_cast<std::byte*>(target.data_ptr()),
               static_cast<const std::byte*>(values.data_ptr()),
               static_cast<std::int64_t>(values.nbytes()));
}

RankMemory::RankMemory(Device& device, const program::Program& program, Id role, Id rank,
                       const std::vector<std::byte*>& given)
    : device_(device), program_(program), role_(program.roles[role]), rank_(rank) {
  std::vector<bool> opaque(role_.storages.size());
  const auto storage_of = [&](const program::Ref& ref) { return role_.views[ref.view].storage; };
  for (const program::Op& op : role_.ops)
    for (const program::Ref& ref : op.refs)
      if (ref.slot == program::Slot::saved) opaque[storage_of(ref)] = true;
  for (const program::Op& op : role_.ops)  // copies of such a storage, and copies back
    if (std::holds_alternative<program::Copy>(op.work))
      if (opaque[storage_of(*find(op, program::Slot::source))] ||
          opaque[storage_of(*find(op, program::Slot::target))])
        for (const program::Ref& ref : op.refs) opaque[storage_of(ref)] = true;
  for (std::size_t s = 0; s < role_.storages.size(); ++s) {
    const program::Storage& storage = role_.storages[s];
    const std::size_t count = std::size_t(storage.indices) * storage.versions;
    Instances instances;
    if (opaque[s])
      instances.saved.resize(count);
    else
      instances.tensors.resize(count);
    const bool on_host = storage.place == program::Place::host;
    const at::Device place = on_host ? at::Device(at::kCPU) : torch_device(device);
    const at::TensorOptions options = at::TensorOptions(scalar_type(storage.dtype)).device(place);
    const std::int64_t bytes = storage.elements * size_of(storage.dtype);
    if (s < given.size() && given[s] != nullptr)
      instances.tensors.at(0) = at::for_blob(device.inside(given[s]), {storage.elements})
                                    .options(options)
                                    .target_device(place)
                                    .make_tensor();
    else if (storage.life != program::Life::value)
      for (at::Tensor& tensor : instances.tensors) {
        Accelerator* const accelerator = device.accelerator();
        if (on_host && accelerator == nullptr) {
          tensor = at::zeros({storage.elements}, options);
          continue;
        }
        tensor = tensor_of(on_host ? accelerator->pinned(bytes) : device.allocate(bytes),
                           {storage.elements}, scalar_type(storage.dtype), place);
      }
    instances.listers.resize(storage.indices);
    instances.pending_releases = std::vector<std::atomic<int>>(count);
    storages_.push_back(std::move(instances));
  }
}

std::string RankMemory::name_of(const Operand& operand) const {
  return fmt::format("{}[{}]", role_.storages[operand.storage].name, operand.index);
}

Operand RankMemory::operand(const program::Ref& ref) {
  return operand(ref, 0, tensors::extent_of(program_, role_, ref.view, rank_).size());
}

Operand RankMemory::operand(const program::Ref& ref, std::int64_t skip, std::int64_t elements) {
  const program::View& view = role_.views.at(ref.view);
  const program::Storage& storage = role_.storages.at(view.storage);
  const tensors::Extent extent = tensors::extent_of(program_, role_, ref.view, rank_);
  Operand operand{.storage = view.storage,
                  .slot = ref.slot,
                  .mode = ref.mode,
                  .dtype = storage.dtype,
                  .value = storage.life == program::Life::value,
                  .index = ref.index,
                  .age = ref.age,
                  .versions = storage.versions,
                  .begin = extent.begin + skip,
                  .elements = elements};
  operand.whole = operand.begin == 0 && operand.elements == storage.elements;
  if (!operand.value)
    for (int version = 0; version < storage.versions; ++version)
      operand.views.push_back(storages_[view.storage]
                                  .tensors[std::size_t(ref.index) * storage.versions + version]
                                  .narrow(0, operand.begin, operand.elements));
  return operand;
}

void RankMemory::touch(const Operand& operand, std::size_t instance, bool writes) const {
  device_.check_body();
  device_.touch({.memory = this,
                 .storage = operand.storage,
                 .instance = instance,
                 .begin = operand.begin,
                 .end = operand.begin + operand.elements,
                 .writes = writes});
}

at::Tensor RankMemory::read(const Operand& operand, std::int64_t step) {
  const std::size_t at = slot(operand, step - operand.age);
  touch(operand, at, false);
  if (!operand.value) return reached(operand, operand.views[at - slot(operand, 0)], false);
  const at::Tensor tensor = [&] {
    const std::lock_guard lock(handles_);
    return storages_[operand.storage].tensors[at];
  }();
  if (!tensor.defined())
    throw ProgramError(
        fmt::format("role {}: {} is read before it is written", role_.name, name_of(operand)));
  return reached(operand, part_of_value(operand, tensor), false);
}

at::Tensor RankMemory::write(const Operand& operand, std::int64_t step) {
  const std::size_t at = slot(operand, step);
  touch(operand, at, true);
  if (!operand.value) return reached(operand, operand.views[at - slot(operand, 0)], true);
  const std::lock_guard lock(handles_);
  at::Tensor& tensor = storages_[operand.storage].tensors[at];
  if (!tensor.defined())
    tensor = at::empty({role_.storages[operand.storage].elements},
                       options_of(operand, scalar_type(operand.dtype)));
  return reached(operand, part_of_value(operand, tensor), true);
}

at::TensorOptions RankMemory::options_of(const Operand& operand, at::ScalarType type) const {
  const at::Device device = torch_device(device_);
  const at::TensorOptions options(type);
  return on_host(operand) ? options.device(at::kCPU).pinned_memory(device.is_cuda())
                          : options.device(device);
}

void RankMemory::copy_saved(const Operand& from, const Operand& to, std::int64_t step) {
  const models::Saved& source = saved(from, step);
  models::Saved& target = saved(to, step);
  target.tensors.clear();
  for (const at::Tensor& tensor : source.tensors) {
    at::Tensor& copy = target.tensors.emplace_back();
    if (!tensor.defined()) continue;
    copy = at::empty_like(tensor, options_of(to, tensor.scalar_type()));
    copy.copy_(tensor, device_.accelerator() != nullptr);
  }
}

at::Tensor RankMemory::reached(const Operand& operand, const at::Tensor& tensor,
                               bool writes) const {
  HostCopies* const copies = HostCopies::current();
  return copies == nullptr || on_host(operand) ? tensor : copies->of(tensor, writes);
}

at::Tensor RankMemory::part_of_value(const Operand& operand, const at::Tensor& value) const {
  if (!on_host(operand)) device_.used(value.storage().data());
  const at::Tensor flat = value.dim() == 1 ? value : value.view(-1);
  return operand.whole ? flat : flat.narrow(0, operand.begin, operand.elements);
}

void RankMemory::set(const Operand& operand, std::int64_t step, const at::Tensor& tensor) {
  if (tensor.numel() != operand.elements)
    throw ProgramError(fmt::format("role {}: {} holds {} elements, the op gives {}", role_.name,
                                   name_of(operand), operand.elements, tensor.numel()));
  if (operand.value && operand.whole && tensor.scalar_type() == scalar_type(operand.dtype) &&
      tensor.is_contiguous()) {
    touch(operand, slot(operand, step), true);
    const std::lock_guard lock(handles_);
    storages_[operand.storage].tensors[slot(operand, step)] = tensor;
  } else {
    write(operand, step).copy_(tensor.reshape(-1));
  }
}

models::Saved& RankMemory::saved(const Operand& operand, std::int64_t step) {
  const std::size_t at = slot(operand, step - operand.age);
  touch(operand, at, operand.mode != program::Mode::read);
  const std::lock_guard lock(handles_);
  models::Saved& saved = storages_[operand.storage].saved.at(at);
  for (const at::Tensor& tensor : saved.tensors)
    if (tensor.defined() && !on_host(operand)) device_.used(tensor.storage().data());
  return saved;
}

void RankMemory::add_last_user(const Operand& operand) {
  ++storages_[operand.storage].listers.at(operand.index);
}

void RankMemory::forget_last_users() {
  for (Instances& instances : storages_)
    std::fill(instances.listers.begin(), instances.listers.end(), 0);
}

void RankMemory::release(const Operand& operand, std::int64_t step) {
  Instances& instances = storages_[operand.storage];
  const std::size_t at = slot(operand, step - operand.age);
  if (instances.pending_releases[at].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // Restart the count before the handle is dropped. Relaxed order is enough: the op that writes
  // this instance next waits for this op.
  instances.pending_releases[at].store(instances.listers[operand.index], std::memory_order_relaxed);
  at::Tensor dying;
  models::Saved dying_saved;  // freed after the lock
  {
    const std::lock_guard lock(handles_);
    if (instances.tensors.empty())
      std::swap(dying_saved, instances.saved[at]);
    else
      std::swap(dying, instances.tensors[at]);
  }
  // Another value may share the memory, as a view of this one.
  if (dying.defined() && dying.use_count() == 1 && dying.storage().use_count() == 1)
    device_.spoil(static_cast<std::byte*>(dying.data_ptr()),
                  static_cast<std::int64_t>(dying.nbytes()));
}

void RankMemory::drop_values() {
  for (std::size_t s = 0; s < storages_.size(); ++s) {
    if (role_.storages[s].life != program::Life::value) continue;
    Instances& instances = storages_[s];
    for (at::Tensor& tensor : instances.tensors) tensor.reset();
    for (models::Saved& saved : instances.saved) saved = {};
    for (std::size_t at = 0; at < instances.pending_releases.size(); ++at)
      instances.pending_releases[at] = instances.listers[at / role_.storages[s].versions];
  }
}

const at::Tensor& RankMemory::version(Id storage, std::int64_t step, int age) const {
  const int versions = role_.storages[storage].versions;
  return storages_[storage].tensors[(((step - age) % versions) + versions) % versions];
}

at::Tensor RankMemory::state(Id storage, std::int64_t step, int age) const {
  device_.check_body();
  return version(storage, step, age);
}

bool RankMemory::host_reaches(Id storage) const {
  return !device_.asynchronous() || role_.storages[storage].place == program::Place::host;
}

HostBytes RankMemory::host(Id storage, std::int64_t step, int age) const {
  const at::Tensor& tensor = version(storage, step, age);
  const auto* const inside = static_cast<const std::byte*>(tensor.data_ptr());
  const std::size_t size = tensor.nbytes();
  if (host_reaches(storage)) return {.bytes = {inside, size}};
  auto copy = std::make_shared<std::vector<std::byte>>(size);
  device_.fetch(inside, copy->data(), static_cast<std::int64_t>(size));
  const std::span<const std::byte> bytes(*copy);
  return {.bytes = bytes, .copy = std::move(copy)};
}

void RankMemory::edit(Id storage, std::int64_t step, int age,
                      const std::function<void(std::span<std::byte>)>& change) {
  const at::Tensor& tensor = version(storage, step, age);
  auto* const inside = static_cast<std::byte*>(tensor.data_ptr());
  if (host_reaches(storage)) return change({inside, tensor.nbytes()});
  std::vector<std::byte> copy(tensor.nbytes());
  const auto size = static_cast<std::int64_t>(copy.size());
  device_.fetch(inside, copy.data(), size);
  change(copy);
  device_.store(inside, copy.data(), size);
}

std::byte* RankMemory::address(Id storage, std::int64_t step, int age) const {
  return device_.outside(static_cast<std::byte*>(version(storage, step, age).data_ptr()));
}

std::span<const std::byte> RankMemory::snapshot(Id storage, int index) const {
  const at::Tensor& tensor = storages_[storage].tensors.at(static_cast<std::size_t>(index));
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace rehearse::runtime
