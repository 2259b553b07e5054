// Matrix products of the blocks, by LibTorch's public functions or by oneDNN.
//
// LibTorch computes fp32 products with MKL, which uses AVX-512 on some processors only. oneDNN is
// part of the same LibTorch and generates code for the instructions that it finds. On processors
// with AVX2 alone both are equally fast; with AVX-512, oneDNN is faster where MKL does not use it
// (docs/performance.md). But the oneDNN function that takes plain tensors is not part of LibTorch's
// public interface, and what it requires of a processor changes between versions. So it is used
// only after its products have been compared with the public functions' on this processor.
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <atomic>

#include "models/large_products.h"
#include "models/layers.h"

namespace at::native {
// Part of libtorch_cpu, declared in aten/src/ATen/native/mkldnn/Matmul.h, which the wheel does not
// contain: result = beta * result + alpha * a b, for two-dimensional views of any strides. A weak
// symbol, so that the program also links with a LibTorch without it; the address is then null.
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result,
                                         float beta, float alpha);
}  // namespace at::native

namespace rehearse::models {
namespace {

std::atomic<std::int64_t> large_from = large_product;

LargeProducts decide() {
  if (vector_instructions() != "AVX512") return {false, "without AVX-512 oneDNN is not faster"};
  const std::string objection = mismatch_with_libtorch(one_dnn_product_into);
  if (!objection.empty()) return {false, "oneDNN's " + objection};
  return {true, "compared with LibTorch's own on this processor"};
}

bool by_one_dnn(const at::Tensor& a, std::int64_t columns) {
  return a.is_cpu() && a.scalar_type() == at::kFloat &&
         a.numel() * columns >= large_from.load(std::memory_order_relaxed) &&
         large_products().one_dnn;
}

/// f32 (rows, columns) in [-0.5, 0.5), the same on every call. Uses no random generator, whose
/// state the training run may rely on.
at::Tensor numbers(std::int64_t rows, std::int64_t columns, double stride) {
  return at::arange(rows * columns, at::kDouble)
      .mul_(stride)
      .frac_()
      .sub_(0.5)
      .to(at::kFloat)
      .view({rows, columns});
}

}  // namespace

void plain_product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                        bool add) {
  if (add) {
    target.addmm_(a, b);
  } else {
    at::Tensor out = target;
    at::mm_out(out, a, b);
  }
}

void one_dnn_product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b,
                          bool add) {
  at::native::mkldnn_matmul(a, b, target, add ? 1.0F : 0.0F, 1.0F);
}

std::string mismatch_with_libtorch(IntoProduct way) {
  // Relative differences: 1e-6 between orders of summation of 512 fp32 terms; 1e-4 and more if
  // operands are rounded to bf16 or TF32.
  constexpr double tolerance = 1e-5;
  constexpr std::int64_t n = 256, k = 512;
  static_assert(n * k * n >= large_product);
  if (way == one_dnn_product_into && at::native::mkldnn_matmul == nullptr)
    return "entry is not in this LibTorch";
  const at::Tensor wide = numbers(n, 2 * k, 0.6180339887), tall = numbers(k, n, 0.7548776662);
  const at::Tensor before = numbers(n, n, 0.5698402910);
  // Views like those that blocks pass: a weight, a slice of wider rows with a transposed weight,
  // and a transposed gradient.
  const std::pair<at::Tensor, at::Tensor> operands[] = {
      {wide.narrow(1, 0, k).contiguous(), tall},
      {wide.narrow(1, k, k), tall.t().contiguous().t()},
      {tall.t(), tall}};
  try {
    for (const auto& [a, b] : operands) {
      for (const bool add : {false, true}) {
        const at::Tensor expected = before.clone(), found = before.clone();
        plain_product_into(expected, a, b, add);
        way(found, a, b, add);
        const double off = ((found - expected).norm() / expected.norm()).item<double>();
        if (!(off < tolerance)) return fmt::format("are {:.1e} away from LibTorch's own", off);
      }
    }
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    return "are refused: " + said.substr(0, said.find('\n'));
  } catch (const std::exception& error) {
    return fmt::format("are refused: {}", error.what());
  }
  return {};
}

const LargeProducts& large_products() {
  static const LargeProducts found = decide();
  return found;
}

std::int64_t lower_large_product(std::int64_t multiplications) {
  return large_from.exchange(multiplications);
}

std::string vector_instructions() { return at::get_cpu_capability(); }

void product_into(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b, bool add) {
  (by_one_dnn(a, b.size(1)) ? one_dnn_product_into : plain_product_into)(target, a, b, add);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!by_one_dnn(a, b.size(1))) return at::mm(a, b);
  const at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  one_dnn_product_into(out, a, b, false);
  return out;
}

at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!bias.defined()) return product(x, weight.t());
  if (!by_one_dnn(x, weight.size(0))) return at::linear(x, weight, bias);
  const at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  out.copy_(bias);
  one_dnn_product_into(out, x, weight.t(), true);
  return out;
}

}  // namespace rehearse::models
