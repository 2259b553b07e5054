// Decides how sparse each layer's gradient becomes and how ranks exchange it (Sun 2026, section
// 3.3). The sparsity follows from the layer's gradient variance (eq. 3), the number of entries kept
// from the sparsity (eq. 4). The fastest exchange depends on the cluster: with 5 to 30% kept, a
// flat all-gather of packets over 32 ranks sends more than a dense ring. So each exchange is priced
// on the ranks' devices, with select and scatter-add:
//
//   dense       all-reduce of whole gradients over all ranks
//   sparse      select; all-gather of packets over all ranks; scatter-add
//   two_level        node 0              node 1
//               r0 <-reduce- r1      r2 <-reduce- r3       whole gradients
//               r0 <-----all-gather----> r2                select; packets of the leaders
//               r0 -broadcast> r1    r2 -broadcast> r3     all packets; scatter-add
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"
#include "engine/plan/plan.h"

namespace rehearse::planner {

/// Eq. 3, clamped to [s_min, s_max], by layer: the layer with the smallest variance gets s_max, the
/// one with the largest gets s_min. If all variances are equal (as with a single layer), eq. 3
/// divides 0 by 0. Then every layer gets the middle of the range, the average if variances differ
/// only by noise. Throws InputError when a variance is negative or not finite, or when 0 <= s_min
/// <= s_max < 1 does not hold.
std::vector<double> sparsity(std::span<const double> variance, double s_min, double s_max);

/// Eq. 4: k = ceil((1 - s) n). Computed as if s were the decimal fraction that was written, without
/// its rounding error as a double.
std::int64_t kept(std::int64_t elements, double sparsity);

/// The variance that eq. 3 takes of a layer in this plan.
double variance_of(const tensors::LayerVariance& layer, const plan::Plan& plan);

/// By segment: its density 1 - s by eq. 3. If the profile has no variances of this model, all count
/// as equal. Segments without parameters of their own get 1. Throws InputError when the
/// profile has variances of only some layers of the model.
std::vector<double> densities(const plan::Plan& plan, const model::ModelSpec& model,
                              const costs::Profile* profile);

/// By rank: its node.
std::vector<Id> nodes_of(const plan::Plan& plan, const cluster::Cluster& cluster);

/// Predicted seconds of one layer's exchange, if all groups of its stage exchange at the same time
/// and nothing else runs. Infinite when no algorithm can do it.
struct ExchangeSeconds {
  plan::LayerExchange exchange = {};
  double select = 0, transfer = 0, scatter = 0;
  double total() const { return select + transfer + scatter; }
};
/// Every exchange that the plan allows for this segment, fastest first; equal ones in the order of
/// their enumerators. plan.exchange.sparse.reduction and plan.exchange.sparse.coding restrict the
/// choice if they are stated.
std::vector<ExchangeSeconds> exchanges_of(const plan::Plan& plan, const model::ModelSpec& model,
                                          const cluster::Cluster& cluster,
                                          const costs::Profile* profile, Id segment,
                                          double density);

/// By segment: its fastest exchange. `plan` must be complete: mesh, placement, precision and, of
/// plan.exchange, zero, collective, selector, reduction, coding, s_min and s_max. With dp = 1 there
/// are none: all are dense and take no time.
std::vector<ExchangeSeconds> fastest_exchanges(const plan::Plan& plan,
                                               const model::ModelSpec& model,
                                               const cluster::Cluster& cluster,
                                               const costs::Profile* profile);

}  // namespace rehearse::planner
