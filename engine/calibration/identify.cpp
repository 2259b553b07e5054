#include "engine/calibration/identify.h"

#include <algorithm>
#include <cmath>
#include <eigen3/Eigen/SVD>

namespace rehearse::calibration {
namespace {

constexpr double in_group = 0.25;  // of the largest component of the combination that cancels

Eigen::MatrixXd columns_of(const Sensitivities& rows, const std::vector<std::size_t>& chosen) {
  Eigen::MatrixXd out(rows.size(), chosen.size());
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t c = 0; c < chosen.size(); ++c)
      out(Eigen::Index(r), Eigen::Index(c)) = rows[r][chosen[c]];
  return out;
}

/// Parameters of `chosen` whose columns almost cancel; none when there are no such columns.
std::vector<std::size_t> cancelling(const Eigen::MatrixXd& columns,
                                    const std::vector<std::size_t>& chosen) {
  if (chosen.size() < 2) return {};
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(columns.colwise().normalized(), Eigen::ComputeFullV);
  const auto last = Eigen::Index(chosen.size()) - 1;
  // With fewer rows than columns there are fewer singular values: the others are 0.
  if (svd.singularValues().size() > last && svd.singularValues()(last) >= least_singular) return {};
  const Eigen::VectorXd weights = svd.matrixV().col(last).cwiseAbs();
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < chosen.size(); ++i)
    if (weights(Eigen::Index(i)) >= in_group * weights.maxCoeff()) out.push_back(chosen[i]);
  return out;
}

}  // namespace

Identified identify(const Sensitivities& rows) {
  Identified out;
  for (std::size_t c = 0; !rows.empty() && c < rows[0].size(); ++c) {
    const bool seen = std::any_of(rows.begin(), rows.end(), [&](const std::vector<double>& row) {
      return std::abs(row[c]) >= least_effect;
    });
    (seen ? out.told_apart : out.without_effect).push_back(c);
  }
  const auto effect = [&](std::size_t c) {
    double sum = 0;
    for (const std::vector<double>& row : rows) sum += row[c] * row[c];
    return sum;
  };
  for (;;) {
    std::vector<std::size_t> members = cancelling(columns_of(rows, out.told_apart), out.told_apart);
    if (members.empty()) return out;
    const std::size_t weakest =
        *std::min_element(members.begin(), members.end(),
                          [&](std::size_t a, std::size_t b) { return effect(a) < effect(b); });
    std::erase(out.told_apart, weakest);
    out.groups.push_back({std::move(members), weakest});
  }
}

}  // namespace rehearse::calibration
