// How much each layer's gradient varies from step to step: Sun 2026, eq. 2,
//
//   sigma^2 = 1/N sum over steps t of |g_t - mean g|^2,
//
// g_t being the gradient of step t that an update uses (summed over ranks), N the steps of warm-up,
// |.|^2 a sum over a layer's coordinates. `observe` kernels keep each coordinate's running mean and
// sum of squared deviations (Welford 1962), bucket by bucket and shard by shard, as gradients lie;
// here these become layers again: a layer is a segment that owns parameters, tied ones are the
// embedding's.
//
// A kernel may look at every stride-th coordinate only. Each parameter group's sum is scaled from
// its own sample, because matrices and norms of one layer vary very differently.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::tensors {

/// Of a warm-up that does not say. A prime, so that no matrix has a width that it divides: a sample
/// of one column would not be one of the matrix.
inline constexpr int default_observe_stride = 61;

/// The segment whose layer a parameter group belongs to: the first that uses it.
Id layer_of(const model::ModelSpec& model, Id group);

/// Every how many-th entry of a gradient to observe so that each of the parameter groups in it has
/// at least 64 observed coordinates (all, where it has fewer), at most `wanted`. `elements`: of
/// each group.
int observe_stride(std::span<const std::int64_t> elements, int wanted);

/// The storage is what an observe kernel of this role keeps.
bool is_observation(const program::Role& role, Id storage);

/// What one rank saw of one parameter group.
struct GroupObservation {
  Id group = none;
  std::int64_t observed = 0;  // coordinates
  int steps = 0;
  double deviations = 0;  // sum over them of the sum of squared deviations
  double means = 0;       // ... of the squared mean
};

/// How much a layer's gradient varied over `steps` steps of warm-up: Sun 2026, eq. 2. A layer is a
/// segment that owns parameters (tied weights belong to the embedding).
struct LayerVariance {
  std::string model = {};
  Id segment = 0;             // into ModelSpec::segments
  std::int64_t elements = 0;  // parameters of the layer
  int steps = 0;
  double total = 0;           // eq. 2 as printed: grows with the layer
  double per_element = 0;     // total / elements
  double square_norm = 0;     // mean over the steps of the gradient's squared norm
  std::int64_t observed = 0;  // coordinates that were looked at; the sums are scaled up from them
};

/// `state`: what the kernel `op` (of the rank's role) kept on this rank. Empty for groups that
/// another rank with an equal copy answers for. Throws InputError naming layer and step when a
/// gradient was not finite; `first_step`: the first one observed.
std::vector<GroupObservation> observations_of(const link::LinkedProgram& linked,
                                              const model::ModelSpec& model, const RankMap& map,
                                              Id rank, Id op, std::span<const float> state,
                                              std::int64_t first_step);

/// By rising segment. `all`: of all ranks, in any order. Layers that nobody observed are left out.
std::vector<LayerVariance> layer_variances(const model::ModelSpec& model,
                                           std::span<const GroupObservation> all);

/// One line each, for the way from rank to rank; exact.
std::string to_text(std::span<const GroupObservation> observations);
std::vector<GroupObservation> parse_observations(const std::string& text);

}  // namespace rehearse::tensors
