// The variance of each layer's gradient from step to step: Sun 2026, eq. 2,
//
//   sigma^2 = 1/N sum over steps t of |g_t - mean g|^2,
//
// where g_t is the gradient that the update of step t uses (summed over ranks), N the number of
// warm-up steps, and |.|^2 a sum over the layer's coordinates. A layer is a segment that owns
// parameters; tied parameters belong to the embedding.
//
// `observe` kernels keep the running mean and the sum of squared deviations of each coordinate
// (Welford 1962), per bucket and shard. This file combines them into layers. A kernel may observe
// only every stride-th coordinate. The sum of each parameter group is then scaled up from its own
// sample, because matrices and norms of one layer vary very differently.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/link/link.h"
#include "engine/model/model.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::tensors {

/// The default stride of a warm-up. It is a prime, so that it hardly ever divides the width of a
/// matrix: otherwise the sample would contain only some columns.
inline constexpr int default_observe_stride = 61;

/// The segment (layer) that a parameter group belongs to: the first one that uses it; none: no
/// segment does.
Id layer_of(const model::ModelSpec& model, Id group);

/// `wanted`, or the largest smaller prime with which each parameter group of a gradient has at
/// least 64 observed coordinates; 1 if a group has fewer. `elements`: the size of each group.
int observe_stride(std::span<const std::int64_t> elements, int wanted);

/// Whether an observe kernel of this role writes the storage.
bool is_observation(const program::Role& role, Id storage);

/// The observations of one rank for one parameter group.
struct GroupObservation {
  Id group = none;
  std::int64_t observed = 0;  // number of observed coordinates
  int observed_steps = 0;
  double deviations = 0;  // sum over the coordinates of their sums of squared deviations
  double means = 0;       // sum over the coordinates of their squared means
};

/// The variance of a layer's gradient over `observed_steps` steps of warm-up (Sun 2026, eq. 2).
struct LayerVariance {
  std::string model = {};
  Id segment = 0;             // into ModelSpec::segments
  std::int64_t elements = 0;  // parameters of the layer
  int observed_steps = 0;
  double total = 0;           // eq. 2 as printed; grows with the layer's size
  double per_element = 0;     // total / elements
  double square_norm = 0;     // mean over the steps of the gradient's squared norm
  std::int64_t observed = 0;  // observed coordinates, from which the sums are scaled up
};

/// The observations of kernel `op` (of the rank's role) on this rank. `state`: the kernel's target
/// storage. Leaves out groups of which another rank with an equal copy reports. Throws InputError
/// with layer and step when a gradient, or its square in fp32, was not finite; `first_step`: the
/// first observed step.
std::vector<GroupObservation> observations_of(const link::LinkedProgram& linked,
                                              const model::ModelSpec& model, const RankMap& map,
                                              Id rank, Id op, std::span<const float> state,
                                              std::int64_t first_step);

/// The variances of all observed layers, by rising segment. `all`: the observations of all ranks,
/// in any order. Throws BackendError when ranks observed different numbers of steps.
std::vector<LayerVariance> layer_variances(const model::ModelSpec& model,
                                           std::span<const GroupObservation> all);

/// Observations as text, one line each, to send them between ranks. Numbers are exact.
/// parse_observations throws BackendError for malformed text.
std::string to_text(std::span<const GroupObservation> observations);
std::vector<GroupObservation> parse_observations(const std::string& text);

}  // namespace rehearse::tensors
