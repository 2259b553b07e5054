// How sparse each layer's gradient becomes and how it is summed (Sun 2026, section 3.3). The
// sparsity follows the layer's gradient variance (eq. 3), the number of entries kept follows the
// sparsity (eq. 4). Which exchange then takes least time is a question of the cluster: with 5 to
// 30% kept a flat all-gather of packets over 32 ranks sends more than a dense ring, so dense,
// sparse and two-level sums are priced on the devices where the ranks stand, select and scatter
// included.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::planner {

/// Eq. 3, clamped to [s_min, s_max]: the layer with the smallest variance gets s_max, the one with
/// the largest s_min. Where all variances are equal, as with a single layer, eq. 3 says 0 / 0:
/// every layer gets the middle of the range, which is what layers get on average when their
/// variances differ by noise alone. Throws InputError on a variance that is negative or not finite,
/// and unless 0 <= s_min <= s_max < 1.
std::vector<double> sparsity(std::span<const double> variance, double s_min, double s_max);

/// Eq. 4: k = ceil((1 - s) n), of the decimal fraction that s was written as.
std::int64_t kept(std::int64_t elements, double sparsity);

/// Of each segment: 1 - s by eq. 3 of the profile's variances per element (the total favours big
/// embeddings), or of equal ones where the profile has none of this model. Segments that own no
/// parameters stay dense. Throws InputError when the profile knows some layers of the model only.
std::vector<double> densities(const plan::Plan& plan, const model::ModelSpec& model,
                              const costs::Profile* profile);

/// Where each rank stands.
std::vector<Id> nodes_of(const plan::Plan& plan, const cluster::Cluster& cluster);

/// Predicted seconds of one layer's exchange, alone on the machine but with those of all groups of
/// its stage at the same time; infinite where it cannot be done.
struct ExchangeSeconds {
  plan::LayerExchange exchange = {};
  double select = 0, transfer = 0, scatter = 0;
  double total() const { return select + transfer + scatter; }
};
/// Every exchange that the plan allows for this segment (plan.reduction and plan.coding, where they
/// are stated, leave no choice), fastest first, equal ones in the order of their enumerators.
std::vector<ExchangeSeconds> exchanges_of(const plan::Plan& plan, const model::ModelSpec& model,
                                          const cluster::Cluster& cluster,
                                          const costs::Profile* profile, Id segment,
                                          double density);

/// The fastest exchange of each segment. `plan` states mesh, stages, rank_to_device (all complete),
/// precision, zero, selector, s_min and s_max.
std::vector<plan::LayerExchange> choose_exchanges(const plan::Plan& plan,
                                                  const model::ModelSpec& model,
                                                  const cluster::Cluster& cluster,
                                                  const costs::Profile* profile);

}  // namespace rehearse::planner
