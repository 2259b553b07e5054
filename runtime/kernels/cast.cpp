#include "runtime/kernels/cast.h"

namespace rehearse::runtime {
namespace {

void put(const at::Tensor& source, const at::Tensor& target, bool add) {
  if (add)
    target.add_(source);
  else
    target.copy_(source);
}

}  // namespace

void cast(std::span<const at::Tensor> sources, const at::Tensor& target, bool add,
          std::int64_t keep, std::int64_t stride) {
  if (keep > 0) {
    const std::int64_t rows = target.numel() / keep;
    put(sources.front().as_strided({rows, keep}, {stride, 1}), target.view({rows, keep}), add);
    return;
  }
  if (stride == 1) {
    put(sources.front(), target, add);
    return;
  }
  const std::int64_t rows = target.numel() / stride;
  std::int64_t column = 0;
  for (const at::Tensor& source : sources) {
    const std::int64_t run = source.numel() / rows;
    put(source.view({rows, run}), target.view({rows, stride}).narrow(1, column, run), add);
    column += run;
  }
}

}  // namespace rehearse::runtime
