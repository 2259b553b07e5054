// The low-rank sync sums a matrix M_i of gradients, one on each of n ranks, by factors of rank r
// (PowerSGD: Vogels et al., NeurIPS 2019, algorithms 1 and 2; PyTorch's powerSGD_hook):
//
//   rank i: M_i += residual                             rows x columns
//           P = M_i Q        --all-reduce--> P          rows x r
//           orthonormalise P
//           Q = M_i^T P      --all-reduce--> Q          columns x r
//           M = P Q^T, residual = M_i - M / n, and the next step begins with Q (warm start)
//
// Vectors, and matrices whose factors would have more than half of their entries, are summed whole.
// Of each bucket, these go into one buffer, the left factors into one and the right factors into
// one, so a bucket takes three all-reduces. Before the step `start`, a bucket is summed whole.
//
// The first factors of a bucket are made when backward has completed it. What waits for their sum
// follows after backward, so that the compute lane never waits for the network before.
#include <algorithm>
#include <optional>
#include <span>

#include "engine/methods/lowering/exchange/replicated.h"
#include "engine/methods/lowering/updates.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::methods {
namespace {

using program::KernelKind;
using program::Mode;
using program::Slot;

/// Factors have at most 1 / so much of the entries of their matrix (PyTorch's
/// min_compression_rate).
constexpr std::int64_t least_compression = 2;

struct Interval {
  std::int64_t begin = 0, end = 0;
};

/// A matrix of a bucket: its place in the gradients, in the residual and in the factors.
struct Matrix {
  std::string name = {};
  int rank = 0;
  Interval grad = {}, residual = {}, left = {}, right = {};
};

/// What a bucket sends as factors, and the intervals of it that it sends whole.
struct Parts {
  std::vector<Matrix> matrices = {};
  std::vector<Interval> rest = {};
  std::int64_t residual = 0, left = 0, right = 0, whole = 0;  // elements of all

  void add(const std::string& name, Interval grad, std::int64_t rows, std::int64_t columns,
           int rank) {
    const auto next = [](std::int64_t& end, std::int64_t size) {
      const std::int64_t begin = end;
      return Interval{begin, end += size};
    };
    matrices.push_back({.name = name,
                        .rank = rank,
                        .grad = grad,
                        .residual = next(residual, rows * columns),
                        .left = next(left, rows * rank),
                        .right = next(right, columns * rank)});
  }
  void keep_whole(Interval one) {
    whole += one.end - one.begin;
    if (!rest.empty() && rest.back().end == one.begin)
      rest.back().end = one.end;
    else
      rest.push_back(one);
  }
};

/// Rows of a tensor as a matrix: its dimensions are divided in two where rows and columns differ
/// least, so heads stay together.
std::int64_t rows_of(std::span<const std::int64_t> shape, std::int64_t elements) {
  std::int64_t best = 1, rows = 1;
  for (const std::int64_t extent : shape.first(shape.size() - 1)) {
    rows *= extent;
    if (rows + elements / rows < best + elements / best) best = rows;
  }
  return best;
}

Parts parts_of(const Stage& stage, const Bucket& b) {
  Parts parts;
  for (std::size_t i = 0; i < b.groups.size(); ++i)
    for (const tensors::TensorInterval& t :
         tensors::tensors_of(stage.model().groups[b.groups[i]], stage.plan().mesh.tp)) {
      const Interval grad{b.begin[i] + t.begin, b.begin[i] + t.end};
      const std::int64_t elements = t.end - t.begin, rows = rows_of(t.shape, elements),
                         columns = elements / rows;
      const auto rank =
          std::min<std::int64_t>({rows, columns, *stage.plan().exchange.low_rank.rank});
      // A bias of heads has several dimensions here, and is a vector to Vogels et al.
      const bool matrix = t.spec->decay;
      if (matrix && (rows + columns) * rank * least_compression < elements)
        parts.add(t.spec->name, grad, rows, columns, static_cast<int>(rank));
      else
        parts.keep_whole(grad);
    }
  return parts;
}

class LowRank final : public Replicated {
 public:
  void declare(Stage& stage, Bucket& b) const override {
    Replicated::declare(stage, b);
    const Parts parts = parts_of(stage, b);
    if (!stage.dp() || parts.matrices.empty()) return;
    program::RoleBuilder& role = stage.role();
    const plan::Exchange& x = stage.plan().exchange;
    const auto factor = [&](const char* prefix, program::Life life, std::int64_t elements) {
      return role.storage({.name = prefix + b.name, .life = life, .elements = elements});
    };
    if (*x.quantised.error_feedback)
      b.views.residual = factor("R.", program::Life::state, parts.residual);
    b.views.left = factor("P.", program::Life::value, parts.left);
    b.views.right = factor(
        "Q.", *x.low_rank.warm_start ? program::Life::state : program::Life::value, parts.right);
    if (parts.rest.size() > 1)
      b.views.rest = role.storage({.name = "rest." + b.name,
                                   .dtype = stage.plan().gradient_type(),
                                   .elements = parts.whole});
  }

  void finish(Stage& stage, int shift) const override {
    if (stage.dp())
      for (const Bucket& b : stage.buckets()) second_factors(stage, b, shift);
    // Without a global norm, a bucket's sum is made just before its update.
    const bool at_once = !stage.optimizer().needs_norm();
    if (!at_once) {
      for (const Bucket& b : stage.buckets()) expand(stage, b, shift);
      emit_norm(stage, {}, shift);
    }
    for (const Bucket& b : stage.buckets()) {
      if (at_once) expand(stage, b, shift);
      emit_update(stage, b, {}, shift);
    }
    const plan::Exchange& x = stage.plan().exchange;
    if (*x.low_rank.warm_start)
      for (const Bucket& b : stage.buckets())
        draw(stage, b, shift, {.from = *x.low_rank.start - 1, .until = *x.low_rank.start});
  }

 private:
  static program::When when(const Stage& stage) {
    return {.from = *stage.plan().exchange.low_rank.start};
  }
  static Id part(Stage& stage, Id of, const std::string& name, Interval where) {
    program::RoleBuilder& role = stage.role();
    return role.view({.name = name,
                      .storage = role.role().views[of].storage,
                      .begin = where.begin,
                      .end = where.end});
  }
  static Id left(Stage& stage, const Bucket& b, const Matrix& m) {
    return part(stage, b.views.left, "P." + m.name, m.left);
  }
  static Id right(Stage& stage, const Bucket& b, const Matrix& m) {
    return part(stage, b.views.right, "Q." + m.name, m.right);
  }
  static Id grad(Stage& stage, const Bucket& b, const Matrix& m) {
    return part(stage, b.views.grad, "M." + m.name, m.grad);
  }
  static Id residual(Stage& stage, const Bucket& b, const Matrix& m) {
    return part(stage, b.views.residual, "R." + m.name, m.residual);
  }
  static void kernel(Stage& stage, KernelKind kind, const Matrix& m, std::vector<program::Ref> refs,
                     int shift, double scale = 1) {
    stage.role().op("compute", program::Kernel{.kind = kind, .scale = scale, .rank = m.rank},
                    std::move(refs), shift, when(stage));
  }

  /// Makes the right factors of a bucket anew.
  static void draw(Stage& stage, const Bucket& b, int shift, program::When steps) {
    if (b.views.right == none) return;
    std::int64_t first = 0;  // every matrix of the stage has draws of its own
    for (const Bucket& other : stage.buckets()) {
      if (other.name == b.name) break;
      first += parts_of(stage, other).right;
    }
    stage.role().op("compute", program::Kernel{.kind = KernelKind::draw, .of = first},
                    {ref(b.views.right, Slot::target, Mode::write)}, shift, steps);
  }

  /// Sums what a bucket sends whole, and its left factors.
  void exchange(Stage& stage, const Bucket& b, int shift) const override {
    if (b.views.left == none) return Replicated::exchange(stage, b, shift);
    const plan::Exchange& x = stage.plan().exchange;
    if (*x.low_rank.start > 0) all_reduce(stage, b.views.grad, shift, {.until = *x.low_rank.start});
    const Parts parts = parts_of(stage, b);
    sum_rest(stage, b, parts, shift);
    if (!*x.low_rank.warm_start) draw(stage, b, shift, when(stage));
    const program::Layout partial{.partial = stage.dp()};
    for (const Matrix& m : parts.matrices) {
      std::vector<program::Ref> refs{
          ref(grad(stage, b, m), Slot::source, Mode::read, 0, 0, partial),
          ref(right(stage, b, m), Slot::right, Mode::read, 0, *x.low_rank.warm_start ? 1 : 0),
          ref(left(stage, b, m), Slot::left, Mode::write, 0, 0, partial)};
      if (b.views.residual != none)
        refs.push_back(ref(residual(stage, b, m), Slot::residual, Mode::add, 0, 1));
      kernel(stage, KernelKind::project, m, std::move(refs), shift);
    }
    all_reduce(stage, b.views.left, shift, when(stage));
  }

  /// The view of an interval that is summed whole: in the gradients, or in the buffer of all.
  static Id whole_grad(Stage& stage, const Bucket& b, const Parts& parts, std::size_t i) {
    return part(stage, b.views.grad, "G." + b.name + ".rest" + std::to_string(i), parts.rest[i]);
  }
  static void sum_rest(Stage& stage, const Bucket& b, const Parts& parts, int shift) {
    if (parts.rest.size() == 1)
      all_reduce(stage, whole_grad(stage, b, parts, 0), shift, when(stage));
    if (b.views.rest == none) return;
    const program::Layout partial{.partial = stage.dp()};
    std::vector<program::Ref> refs;
    for (std::size_t i = 0; i < parts.rest.size(); ++i)
      refs.push_back(ref(whole_grad(stage, b, parts, i), Slot::source, Mode::read, 0, 0, partial));
    refs.push_back(ref(b.views.rest, Slot::target, Mode::write, 0, 0, partial));
    stage.role().op(
        "compute",
        program::Kernel{.kind = KernelKind::cast, .stride = static_cast<int>(parts.whole)},
        std::move(refs), shift, when(stage));
    all_reduce(stage, b.views.rest, shift, when(stage));
  }

  static void second_factors(Stage& stage, const Bucket& b, int shift) {
    if (b.views.left == none) return;
    const program::Layout partial{.partial = stage.dp()};
    for (const Matrix& m : parts_of(stage, b).matrices) {
      kernel(stage, KernelKind::orthonormalise, m, {ref(left(stage, b, m), Slot::left, Mode::add)},
             shift);
      // With a residual, the matrix is there.
      const program::Ref matrix =
          b.views.residual != none
              ? ref(residual(stage, b, m), Slot::source, Mode::read)
              : ref(grad(stage, b, m), Slot::source, Mode::read, 0, 0, partial);
      kernel(stage, KernelKind::project_back, m,
             {matrix, ref(left(stage, b, m), Slot::left, Mode::read),
              ref(right(stage, b, m), Slot::right, Mode::write, 0, 0, partial)},
             shift);
    }
    all_reduce(stage, b.views.right, shift, when(stage));
  }

  static void expand(Stage& stage, const Bucket& b, int shift) {
    if (b.views.left == none) return;
    const Parts parts = parts_of(stage, b);
    for (const Matrix& m : parts.matrices) {
      std::vector<program::Ref> refs{ref(left(stage, b, m), Slot::left, Mode::read),
                                     ref(right(stage, b, m), Slot::right, Mode::read),
                                     ref(grad(stage, b, m), Slot::target, Mode::write)};
      if (b.views.residual != none)
        refs.push_back(ref(residual(stage, b, m), Slot::residual, Mode::add));
      kernel(stage, KernelKind::expand, m, std::move(refs), shift, 1.0 / stage.plan().mesh.dp);
    }
    if (b.views.rest == none) return;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < parts.rest.size(); ++i) {
      const std::int64_t size = parts.rest[i].end - parts.rest[i].begin;
      const Id sent =
          part(stage, b.views.rest, "rest." + b.name + "." + std::to_string(i), {at, at + size});
      at += size;
      stage.role().op("compute", program::Copy{},
                      {ref(sent, Slot::source, Mode::read),
                       ref(whole_grad(stage, b, parts, i), Slot::target, Mode::write)},
                      shift, when(stage));
    }
  }
};

}  // namespace

const GradientSync& low_rank() {
  static const LowRank sync;
  return sync;
}

}  // namespace rehearse::methods
