// Matrix products of the blocks. LibTorch gives fp32 products to MKL, which on processors that are
// not Intel's runs kernels for narrow vectors; oneDNN, which is in the same library, makes its code
// for the processor it finds (measured on an EPYC with AVX-512: about 2 to 3 times as fast, see
// docs/performance.md). Who computes depends on the processor and the shape alone, so that a
// resumed run repeats its bits.
#include <ATen/Context.h>

#include "models/layers.h"

namespace at::native {
// Exported by libtorch_cpu, without a header in the wheel (aten/src/ATen/native/mkldnn/Matmul.h):
// result = beta * result + alpha * a b, strides of any two-dimensional view.
void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace rehearse {
namespace {

// Multiplications below which finding oneDNN's kernel costs more than it gains.
constexpr std::int64_t worth_it = 1 << 25;

bool one_dnn(const at::Tensor& a, std::int64_t columns) {
#if defined(__x86_64__)
  static const bool better =
      at::hasMKLDNN() && __builtin_cpu_is("intel") == 0 && __builtin_cpu_supports("avx2") != 0;
#else
  constexpr bool better = false;
#endif
  return better && a.is_cpu() && a.scalar_type() == at::kFloat && a.numel() * columns >= worth_it;
}

}  // namespace

void product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (one_dnn(a, b.size(1))) {
    at::native::mkldnn_matmul(a, b, target, add ? 1.0F : 0.0F, 1.0F);
  } else if (add) {
    target.addmm_(a, b);
  } else {
    at::Tensor out = target;
    at::mm_out(out, a, b);
  }
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!one_dnn(a, b.size(1))) return at::mm(a, b);
  const at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  product_into(out, a, b, false);
  return out;
}

at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!one_dnn(x, weight.size(0))) return at::linear(x, weight, bias);
  const at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  out.copy_(bias);
  product_into(out, x, weight.t(), true);
  return out;
}

}  // namespace rehearse
