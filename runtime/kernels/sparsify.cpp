// Finds the k largest entries in one pass over gradient and residual:
//
//   1. sample    a bound that slightly more than k entries should reach
//   2. pass      entries that reach the bound become candidates; the residual is written
//   3. cut       a radix select leaves the k largest candidates
//
// The result is exact whatever the sample says. When the candidates are full they are cut to their
// own k largest, and later entries must exceed the smallest of these. When the pass ends with fewer
// than k candidates, it is undone and repeated without a bound.
#include "runtime/kernels/sparsify.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

#include "engine/base/numbers/random.h"
#include "runtime/kernels/floats.h"
#include "runtime/kernels/select_kernels.h"

namespace rehearse::runtime {
namespace {

constexpr std::int64_t block = float_block, vector = 16;

/// The gradient as fp32, times the step's factor.
class Source {
 public:
  Source(const void* values, program::DType type, float factor)
      : values_(values), type_(type), factor_(factor) {}
  const float* at(std::int64_t begin, std::int64_t count) {
    const float* from = as_f32(values_, type_, begin, count, scratch_.data());
    if (factor_ == 1) return from;
    for (std::int64_t i = 0; i < count; ++i) scratch_[i] = from[i] * factor_;
    return scratch_.data();
  }

 private:
  const void* values_;
  program::DType type_;
  float factor_;
  std::array<float, block> scratch_;
};

/// Selection sampling (Knuth, volume 2, algorithm S): every set of k entries is equally likely.
class RandomDraw {
 public:
  RandomDraw(const program::Kernel& kernel, const SelectStep& step)
      : key_(random_key(step.seed, Draw::select, static_cast<std::uint64_t>(step.step),
                        kernel.draw)),
        of_(kernel.of),
        wanted_(kernel.keep) {}
  /// Whether entry `at` is drawn; asked for all entries in order.
  bool takes(std::int64_t at) {
    if (wanted_ == 0) return false;
    const auto left = static_cast<std::uint64_t>(of_ - at);
    if ((std::uint64_t{random_bits(key_, static_cast<std::uint32_t>(at))} * left >> 32) >=
        static_cast<std::uint64_t>(wanted_))
      return false;
    --wanted_;
    return true;
  }

 private:
  RandomKey key_;
  std::int64_t of_, wanted_;
};

class Selection {
 public:
  Selection(const program::Kernel& kernel, const SelectStep& step, const void* gradient,
            program::DType type, float* residual, SelectScratch& scratch)
      : kernel_(kernel),
        step_(step),
        source_(gradient, type, 1 / step.gradients.scale()),
        residual_(residual),
        values_(scratch.values.data()),
        indices_(scratch.indices.data()),
        magnitudes_(scratch.magnitudes.data()) {
    rule_.use = uses_residual(kernel);
    rule_.beta = residual_beta(kernel);
    if (clears_residual(kernel, step.step)) std::fill_n(residual, kernel.of, 0.0F);
  }

  std::int64_t count() const { return count_; }
  /// The smallest magnitude that was taken.
  float smallest() const { return smallest_; }
  std::int64_t entries_reaching(float magnitude) const;

  void top_k() {
    const std::uint32_t bound = likely_bound();
    rule_.remove = rule_.beta == 1;
    if (kernel_.keep == 0) {
      collect(beyond_all, kernel_.keep);
      return;
    }
    // With beta < 1 a pass cannot be undone, because the old residual is lost. So the bound is
    // checked by counting before anything is written.
    const bool sure = rule_.beta == 1 || reaching(bound) >= kernel_.keep;
    collect(sure ? bound : 0, kernel_.keep);
    if (count_ < kernel_.keep) {
      restore_from(0);
      added_ = true;
      collect(0, kernel_.keep);
    }
    cut(kernel_.keep);
    if (!rule_.remove)
      for (std::int64_t i = 0; i < count_; ++i) residual_[indices_[i]] -= values_[i];
  }

  /// Takes the entries that reach `threshold`. Returns false when more than `most` do: then it has
  /// taken nothing, and top_k can follow.
  bool by_threshold(float threshold, std::int64_t most) {
    rule_.remove = true;
    const std::uint32_t least = magnitude_of(threshold);
    if (rule_.beta != 1 && reaching(least) > most) return false;
    collect(least, std::numeric_limits<std::int64_t>::max(), most);
    if (count_ <= most) return true;
    restore_from(0);
    added_ = true;
    return false;
  }

  void random_k() {
    RandomDraw draw(kernel_, step_);
    rule_.remove = false;
    for (std::int64_t begin = 0; begin < kernel_.of; begin += block) {
      const std::int64_t n = std::min(block, kernel_.of - begin);
      const float* g = source_.at(begin, n);
      float* e = residual_ + begin;
      const std::int64_t first = count_;
      for (std::int64_t i = 0; i < n; ++i) {
        if (!draw.takes(begin + i)) continue;
        values_[count_] = rule_.use ? g[i] + e[i] : g[i];
        indices_[count_++] = static_cast<std::uint32_t>(begin + i);
      }
      pass(rule_, g, e, n, 0, beyond_all, values_ + count_, indices_ + count_);
      for (std::int64_t i = first; i < count_; ++i) residual_[indices_[i]] -= values_[i];
    }
  }

  void write(std::byte* packet) const { write_packet(kernel_, values_, indices_, count_, packet); }

 private:
  /// The bits of a magnitude that slightly more than `keep` entries should reach: 4 standard
  /// deviations more, from an evenly spread sample that hits about 2048 of the `keep` largest, or
  /// as many as there is room for. 0 when there are too few entries for a sample.
  std::uint32_t likely_bound() {
    const double part = static_cast<double>(kernel_.keep) / static_cast<double>(kernel_.of);
    const double wanted = 2048 / part;
    if (kernel_.keep == 0 || wanted > static_cast<double>(kernel_.of) / 16) return 0;
    const std::int64_t size =
        std::min(static_cast<std::int64_t>(wanted), select_candidates(kernel_));
    const std::int64_t stride = kernel_.of / size;
    const RandomKey key = random_key(0, Draw::select, 0, 0);
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t at = i * stride + random_bits(key, static_cast<std::uint32_t>(i)) % stride;
      const float g = added_ ? 0 : *source_.at(at, 1);
      magnitudes_[i] = magnitude_of(rule_.use ? g + residual_[at] : g);
    }
    const double hits = part * static_cast<double>(size);
    const auto rank = static_cast<std::ptrdiff_t>(hits + 4 * std::sqrt(hits));
    if (rank >= size) return 0;
    std::nth_element(magnitudes_, magnitudes_ + rank, magnitudes_ + size, std::greater<>());
    return magnitudes_[rank];
  }

  /// Counts the entries whose magnitude's bits reach `least`. Writes nothing.
  std::int64_t reaching(std::uint32_t least) {
    std::int64_t found = 0;
    for (std::int64_t begin = 0; begin < kernel_.of; begin += block) {
      const std::int64_t n = std::min(block, kernel_.of - begin);
      const float *g = source_.at(begin, n), *e = residual_ + begin;
      std::int32_t here = 0;
      if (rule_.use)
        for (std::int64_t i = 0; i < n; ++i) here += magnitude_of(g[i] + e[i]) >= least;
      else
        for (std::int64_t i = 0; i < n; ++i) here += magnitude_of(g[i]) >= least;
      found += here;
    }
    return found;
  }

  /// Step 2: collects the entries whose magnitude's bits reach `least` and writes the residual.
  /// Full candidates are cut to the `keep` largest. With more than `most` candidates it stops
  /// collecting.
  void collect(std::uint32_t least, std::int64_t keep,
               std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    static constexpr std::array<float, block> zeros = {};
    const std::int64_t capacity = select_candidates(kernel_);
    count_ = 0;
    for (std::int64_t begin = 0; begin < kernel_.of; begin += block) {
      const std::int64_t n = std::min(block, kernel_.of - begin);
      if (count_ + n + vector > capacity && count_ <= most) least = cut(keep) + 1;
      if (count_ > most) least = beyond_all;
      // After an undone pass the residual already contains the gradient.
      const float* g = added_ ? zeros.data() : source_.at(begin, n);
      count_ += pass(rule_, g, residual_ + begin, n, static_cast<std::uint32_t>(begin), least,
                     values_ + count_, indices_ + count_);
    }
  }

  /// Step 3: leaves the `keep` largest candidates. Dropped ones go back to the residual if the pass
  /// removed them. Returns the bits of the smallest magnitude left.
  std::uint32_t cut(std::int64_t keep) {
    assert(keep <= count_);
    const Threshold threshold = threshold_of(values_, count_, keep, magnitudes_);
    smallest_ = std::bit_cast<float>(threshold.bits);
    count_ = keep_largest(values_, indices_, count_, threshold, rule_.remove ? residual_ : nullptr);
    return threshold.bits;
  }

  // Undoes the collection of candidates from `first` on: their values return to the residual.
  void restore_from(std::int64_t first) {
    for (std::int64_t i = first; i < count_; ++i) residual_[indices_[i]] = values_[i];
    count_ = first;
  }

  const program::Kernel& kernel_;
  const SelectStep& step_;
  Source source_;
  float* residual_;
  float* values_;
  std::uint32_t *indices_, *magnitudes_;
  std::int64_t count_ = 0;
  float smallest_ = 0;
  EntryRule rule_ = {};
  bool added_ = false;  // the residual already contains the gradient
};

std::int64_t Selection::entries_reaching(float magnitude) const {
  std::int32_t found = 0;
  for (std::int64_t i = 0; i < count_; ++i) found += std::fabs(values_[i]) >= magnitude;
  return found;
}

/// The next threshold: one Newton step towards `wanted` entries, in logarithms. The slope is that
/// between the threshold and 1.25 times the threshold.
float next_threshold(const Selection& taken, float threshold, std::int64_t wanted) {
  constexpr float above = 1.25F;
  if (taken.count() == 0) return 0;
  const auto count = static_cast<double>(taken.count());
  const double higher =
      std::max(1.0, static_cast<double>(taken.entries_reaching(above * threshold)));
  const double slope = std::clamp(std::log(count / higher) / std::log(double{above}), 1.0, 20.0);
  const double ratio = count / static_cast<double>(wanted);
  return static_cast<float>(threshold * std::clamp(std::pow(ratio, 1 / slope), 0.5, 2.0));
}

void threshold_select(Selection& selection, const program::Kernel& kernel, float* state) {
  const std::int64_t most = packet_capacity(kernel.of, kernel.keep, kernel.selector);
  // Without a threshold, or when too many entries reached it, top-k finds the exact one.
  if (kernel.keep == 0 || state[0] <= 0 || !selection.by_threshold(state[0], most)) {
    selection.top_k();
    state[0] = selection.smallest();
  } else {
    state[0] = next_threshold(selection, state[0], kernel.keep);
  }
  state[1] = static_cast<float>(selection.count());
}

}  // namespace

void SelectScratch::fit(const program::Kernel& kernel) {
  const auto need = static_cast<std::size_t>(select_candidates(kernel));
  if (values.size() >= need) return;
  values.resize(need);
  indices.resize(need);
  magnitudes.resize(need);
}

void draw_entries(const program::Kernel& kernel, const SelectStep& step, std::uint32_t* indices) {
  RandomDraw draw(kernel, step);
  for (std::int64_t i = 0; i < kernel.of; ++i)
    if (draw.takes(i)) *indices++ = static_cast<std::uint32_t>(i);
}

std::int64_t select(const program::Kernel& kernel, const SelectStep& step, const void* gradient,
                    program::DType type, float* residual, float* threshold, std::byte* packet,
                    SelectScratch& scratch) {
  if (!step.gradients.finite()) {
    select_nothing(kernel, packet);
    return 0;
  }
  scratch.fit(kernel);
  Selection selection(kernel, step, gradient, type, residual, scratch);
  switch (kernel.selector) {
    case program::Selector::top_k:
      selection.top_k();
      break;
    case program::Selector::random_k:
      selection.random_k();
      break;
    case program::Selector::threshold:
      threshold_select(selection, kernel, threshold);
      break;
  }
  selection.write(packet);
  return selection.count();
}

}  // namespace rehearse::runtime
