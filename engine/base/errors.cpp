// "Did you mean": the optimal string alignment distance (Damerau 1964), in which swapping two
// neighbouring letters is one edit. Case is ignored, and - equals _.
#include "engine/base/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/base/terms.h"

namespace rehearse {
namespace {

std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1,
                          d[i - 1][j - 1] + static_cast<std::size_t>(a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string wanted = folded(word);
  for (const std::string& candidate : candidates)
    if (folded(candidate) == wanted) return candidate;
  if (!term_note(word).empty()) return "";
  const std::string* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t d = distance(wanted, folded(candidate));
    if (d < best_distance) best = &candidate, best_distance = d;
  }
  if (best != nullptr) return *best;
  // A missing word ("batch" for "global_batch") is many edits, but still likely to be meant; a part
  // of a word ("batch" for "eval_batches") less so.
  std::pair<bool, std::size_t> least;
  for (const std::string& candidate : candidates) {
    std::string longer = folded(candidate), shorter = wanted;
    if (longer.size() < shorter.size()) std::swap(longer, shorter);
    if (shorter.size() < 3 || longer.find(shorter) == std::string::npos) continue;
    const bool part =
        fmt::format("_{}_", longer).find(fmt::format("_{}_", shorter)) == std::string::npos;
    const std::pair d(part, longer.size() - shorter.size());
    if (best == nullptr || d < least) best = &candidate, least = d;
  }
  return best != nullptr ? *best : std::string();
}

}  // namespace rehearse
