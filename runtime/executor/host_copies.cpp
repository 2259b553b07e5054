#include "runtime/executor/host_copies.h"

#include <ATen/ops/empty.h>

#include "engine/base/errors.h"
#include "runtime/device/accelerator.h"

namespace rehearse::runtime {
namespace {

thread_local HostCopies* of_this_body = nullptr;

}  // namespace

HostCopies::HostCopies(Device& device) {
  device.accelerator()->finish();
  of_this_body = this;
}

HostCopies::~HostCopies() { of_this_body = nullptr; }

HostCopies* HostCopies::current() { return of_this_body; }

at::Tensor HostCopies::of(const at::Tensor& tensor, bool writes) {
  const auto* const begin = static_cast<const std::byte*>(tensor.data_ptr());
  const std::byte* const end = begin + tensor.nbytes();
  for (Pair& pair : pairs_) {
    const auto* const first = static_cast<const std::byte*>(pair.there.data_ptr());
    const std::byte* const last = first + pair.there.nbytes();
    if (end <= first || last <= begin) continue;
    if (first != begin || last != end)
      throw ProgramError("an op on the host has operands that overlap");
    pair.written |= writes;
    return pair.here;
  }
  Pair& pair = pairs_.emplace_back();
  pair.there = tensor;
  pair.here = at::empty(tensor.sizes(), tensor.scalar_type());
  pair.here.copy_(tensor);
  pair.written = writes;
  return pair.here;
}

void HostCopies::store() {
  for (const Pair& pair : pairs_)
    if (pair.written) pair.there.copy_(pair.here);
}

}  // namespace rehearse::runtime
