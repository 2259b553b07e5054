#include "runtime/training/checker.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "runtime/checkpoints/files/safetensors.h"
#include "runtime/executor/rank_memory.h"

namespace rehearse::runtime {
namespace {

using tensors::PartKey;
using tensors::StorageKind;

constexpr double rounding = 1.01;  // of 16-bit weights, and of the bound itself
constexpr double sgd_growth = 10;  // between two checks; momentum has no bound

/// Whether the rank's copy is the optimizer's own. Others are overwritten before they are used.
bool counts(const tensors::TensorPart& part, const tensors::RankMap& map) {
  switch (part.key.kind) {
    case StorageKind::param:
      return map.storages[part.storage].updated;
    case StorageKind::moment1:
    case StorageKind::moment2:
    case StorageKind::master:
    case StorageKind::anchor:
    case StorageKind::outer_moment:
    case StorageKind::residual:
    case StorageKind::sum_residual:
      return true;
    default:
      return false;
  }
}

std::string describe(const PartKey& key) {
  return fmt::format("{} of {}", key.kind == StorageKind::param ? "weight" : name_of(key.kind),
                     key.tensor);
}

std::string ranks_text(const std::vector<Id>& ranks) {
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
}

std::uint64_t checksum_of_all(const std::vector<std::uint64_t>& sums) {
  return checksum_of(std::as_bytes(std::span(sums)));
}

}  // namespace

struct Checker::Mine {
  std::map<PartKey, HostBytes> bytes = {};

  std::uint64_t checksum(const std::vector<PartKey>& keys) const {
    std::vector<std::uint64_t> sums;
    for (const PartKey& key : keys) sums.push_back(checksum_of(bytes.at(key).bytes));
    return checksum_of_all(sums);
  }
};

struct Checker::Said {
  std::vector<std::uint64_t> sums = {};  // by set of ranks; 0: this rank is not in it
  double largest = 0;                    // number of its weights
  std::string where = {};                // its tensor
  std::string broken = {};               // a tensor with a number that is not possible; empty: none

  std::string text() const {
    // JSON has no infinity.
    return nlohmann::json{{"sums", sums},
                          {"largest", fmt::format("{}", largest)},
                          {"where", where},
                          {"broken", broken}}
        .dump();
  }
  static Said of(const std::string& text) {
    const auto json = nlohmann::json::parse(text);
    return {.sums = json.at("sums").get<std::vector<std::uint64_t>>(),
            .largest = std::stod(json.at("largest").get<std::string>()),
            .where = json.at("where"),
            .broken = json.at("broken")};
  }

  /// Looks at the numbers of a part.
  void look(const PartKey& key, program::DType type, std::span<const std::byte> bytes) {
    const auto count = static_cast<std::int64_t>(bytes.size()) / size_of(type);
    const auto [least, most] = at::aminmax(
        at::from_blob(const_cast<std::byte*>(bytes.data()), {count}, at::dtype(scalar_type(type))));
    const double low = least.item<double>(), high = most.item<double>();
    const double size = std::max(-low, high);
    const bool finite = std::isfinite(low) && std::isfinite(high);
    if (!finite || (key.kind == StorageKind::moment2 && low < 0)) {
      if (broken.empty()) broken = describe(key);
    } else if (tensors::is_weight(key.kind) && size > largest) {
      largest = size;
      where = describe(key);
    }
  }
};

double largest_adamw_step(const job::Train& train) {
  const double left = (1 - train.beta2) * (1 - train.beta1 * train.beta1 / train.beta2);
  if (!(left > 0)) return std::numeric_limits<double>::infinity();
  return train.lr * std::max(1.0, (1 - train.beta1) / std::sqrt(left));
}

Checker::Copies Checker::copies_of(const PlacedPlan& plan) const {
  const ExecutorContext& c = plan.context;
  const std::vector<tensors::RankMap>& maps = plan.executor.maps();
  std::map<PartKey, std::vector<Id>> holders;
  for (Id rank = 0; rank < maps.size(); ++rank)
    for (const tensors::TensorPart& part : parts_of(c.linked, c.model, maps, rank))
      if (counts(part, maps[rank]) && part.key.kind != StorageKind::residual)
        holders[part.key].push_back(rank);
  Copies copies;
  for (const auto& [key, ranks] : holders)
    if (ranks.size() > 1) copies[ranks].push_back(key);
  return copies;
}

double Checker::possible(std::int64_t step, const PlacedPlan& plan) const {
  if (step_ < 0) return std::numeric_limits<double>::infinity();
  if (job_.plan.optimizer == plan::Optimizer::sgd)
    return largest_ > 0 ? sgd_growth * largest_ : std::numeric_limits<double>::infinity();
  // Parameter servers apply the gradients of free-running workers one by one.
  std::size_t updates = 0;
  for (const program::Role& role : plan.plan->linked.program.roles)
    if (role.free_running) updates += role.ranks.size();
  const double steps =
      static_cast<double>(step - step_) * static_cast<double>(std::max<std::size_t>(updates, 1));
  const plan::Averaging& outer = job_.plan.exchange.averaging;
  if (!outer.outer_lr) return rounding * (largest_ + steps * largest_adamw_step(job_.train));
  // An outer step with momentum goes further than the steps that led to it, which began before.
  const double farther = std::max(1.0, *outer.outer_lr / (1 - *outer.outer_momentum));
  return rounding *
         (largest_ + farther * (steps + *outer.local_steps) * largest_adamw_step(job_.train));
}

void Checker::check(std::int64_t step, PlacedPlan& plan) {
  const ExecutorContext& c = plan.context;
  Mine mine;
  Said said;
  for (const tensors::TensorPart& part :
       parts_of(c.linked, c.model, plan.executor.maps(), c.rank)) {
    if (!counts(part, plan.executor.maps()[c.rank])) continue;
    const program::DType type = plan.executor.role().storages[part.storage].dtype;
    HostBytes bytes = plan.executor.state(part.storage, step, part.key.age);
    bytes.bytes = bytes.bytes.subspan(part.begin * size_of(type),
                                      (part.key.end - part.key.begin) * size_of(type));
    if (!bytes.bytes.empty()) said.look(part.key, type, bytes.bytes);
    mine.bytes[part.key] = std::move(bytes);
  }
  const Copies copies = copies_of(plan);
  for (const auto& [ranks, keys] : copies)
    said.sums.push_back(std::ranges::find(ranks, c.rank) == ranks.end() ? 0 : mine.checksum(keys));
  std::vector<Said> all;
  for (const std::string& one : control_.gather("state's checksums", said.text()))
    all.push_back(Said::of(one));
  most_ = possible(step, plan);
  check_numbers(step, all);
  check_copies(step, copies, all, mine, c.wiring);
  step_ = step;
  largest_ = std::ranges::max(all, {}, &Said::largest).largest;
}

void Checker::check_numbers(std::int64_t step, const std::vector<Said>& all) {
  std::vector<Id> wrong;
  std::string what;
  for (Id rank = 0; rank < all.size(); ++rank) {
    const Said& one = all[rank];
    if (one.broken.empty() && one.largest <= most_) continue;
    wrong.push_back(rank);
    if (!what.empty()) continue;
    what = !one.broken.empty()
               ? fmt::format("{} is not finite or has an impossible sign", one.broken)
               : fmt::format(
                     "{} has a number of size {:.3g}, and at most {:.3g} can have come of "
                     "{:.3g} at the check after step {}",
                     one.where, one.largest, most_, largest_, step_);
  }
  if (!wrong.empty())
    throw BackendError(
        fmt::format("wrong numbers after step {} on {}: {}", step, ranks_text(wrong), what));
}

void Checker::check_copies(std::int64_t step, const Copies& copies, const std::vector<Said>& all,
                           const Mine& mine, const Wiring& wiring) {
  std::size_t index = 0;
  for (const auto& [ranks, keys] : copies) {
    std::vector<Id> processes = wiring.processes(ranks);
    const std::size_t here = index++;
    const auto sum = [&](Id process) { return all[process].sums.at(here); };
    if (std::ranges::all_of(processes, [&](Id p) { return sum(p) == sum(processes.front()); }))
      continue;
    // Every rank comes here, because all of them see the same sums. Each says its checksum of every
    // tensor, and the first tensor that differs is named.
    nlohmann::json sums = nlohmann::json::array();
    for (const PartKey& key : keys) {
      const auto found = mine.bytes.find(key);
      sums.push_back(found == mine.bytes.end() ? 0 : checksum_of(found->second.bytes));
    }
    std::vector<nlohmann::json> said;
    for (const std::string& one : control_.gather("tensors' checksums", sums.dump()))
      said.push_back(nlohmann::json::parse(one));
    for (std::size_t k = 0; k < keys.size(); ++k) {
      std::map<std::uint64_t, std::vector<Id>> by_sum;
      for (const Id p : processes) by_sum[said[p].at(k).get<std::uint64_t>()].push_back(p);
      if (by_sum.size() == 1) continue;
      const auto& [value, most] =
          *std::ranges::max_element(by_sum, {}, [](const auto& one) { return one.second.size(); });
      std::sort(processes.begin(), processes.end());
      if (2 * most.size() <= processes.size())
        throw BackendError(
            fmt::format("wrong numbers after step {} on one of {}: they differ in the {}, which is "
                        "equal to the bit on all of them while nothing is wrong; {} copies do not "
                        "say which one is wrong",
                        step, ranks_text(processes), describe(keys[k]), processes.size()));
      std::vector<Id> odd;
      for (const Id p : processes)
        if (std::ranges::find(most, p) == most.end()) odd.push_back(p);
      throw BackendError(
          fmt::format("wrong numbers after step {} on {}: the {} differs from that of {}, which "
                      "agree to the bit",
                      step, ranks_text(odd), describe(keys[k]), ranks_text(most)));
    }
  }
}

}  // namespace rehearse::runtime
