#include "engine/migration/migration_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace rehearse::migration {

Rect common(const Rect& a, const Rect& b) {
  return {.row = std::max(a.row, b.row),
          .row_end = std::min(a.row_end, b.row_end),
          .col = std::max(a.col, b.col),
          .col_end = std::min(a.col_end, b.col_end)};
}

std::vector<Rect> without(const Rect& whole, const Rect& taken) {
  const Rect hole = common(whole, taken);
  if (hole.empty()) return {whole};
  const Rect parts[] = {{whole.row, hole.row, whole.col, whole.col_end},
                        {hole.row_end, whole.row_end, whole.col, whole.col_end},
                        {hole.row, hole.row_end, whole.col, hole.col},
                        {hole.row, hole.row_end, hole.col_end, whole.col_end}};
  std::vector<Rect> left;
  for (const Rect& part : parts)
    if (!part.empty()) left.push_back(part);
  return left;
}

std::vector<HeldRect> rectangles(const tensors::TensorPart& part, const model::TensorSpec* spec,
                                 bool split, bool whole) {
  const tensors::PartKey& key = part.key;
  std::int64_t width = spec == nullptr ? key.end : tensors::elements_of(*spec);
  if (spec != nullptr && split && !whole && spec->split >= 0)
    width = std::accumulate(spec->shape.begin() + spec->split, spec->shape.end(), std::int64_t{1},
                            std::multiplies<>());
  const std::int64_t run = width / key.tp_size, first = run * key.tp_rank;
  std::vector<HeldRect> out;
  const auto add = [&](Rect rect) {
    if (!rect.empty())
      out.push_back({.rect = rect, .origin = part.begin - key.begin - first, .pitch = run});
  };
  std::int64_t row = key.begin / run;
  const std::int64_t last = key.end / run;
  if (row == last) {
    add({row, row + 1, first + key.begin % run, first + key.end % run});
    return out;
  }
  if (key.begin % run != 0) {
    add({row, row + 1, first + key.begin % run, first + run});
    ++row;
  }
  add({row, last, first, first + run});
  add({last, last + 1, first, first + key.end % run});
  return out;
}

namespace {

using Key = std::tuple<tensors::StorageKind, std::string, int, int>;  // kind, tensor, age, copy
using Copies = std::map<int, std::vector<HeldRect>>;  // by copy number: residuals of a tensor

/// A rectangle that `from` provides.
struct Taken {
  const HeldRect* from = nullptr;
  Rect rect = {};
};

class Mover {
 public:
  Mover(const std::vector<OwnedRect>& old_parts, const std::vector<OwnedRect>& new_parts,
        const std::function<double(Id, Id)>& distance, std::int64_t most)
      : new_parts_(new_parts), distance_(distance), most_(most) {
    for (const OwnedRect& part : old_parts) {
      if (part.key.kind == tensors::StorageKind::residual)
        owed_[part.key.tensor][part.key.copy].push_back(part.held);
      else
        have_[key_of(part.key, part.key.kind, part.key.age)].push_back(part.held);
    }
    Id ranks = 0;
    for (const auto* parts : {&old_parts, &new_parts})
      for (const OwnedRect& part : *parts) ranks = std::max(ranks, part.held.rank + 1);
    load_.resize(ranks);
  }

  PieceMoves run() {
    settle_residuals();
    for (std::size_t item = 0; item < new_parts_.size(); ++item) {
      const auto& [key, need] = new_parts_[item];
      if (key.kind == tensors::StorageKind::residual) {
        int turn = 0;
        for (const int copy : adds_to_[{key.tensor, key.copy}])
          emit(key, need, owed_.at(key.tensor).at(copy), static_cast<int>(item), turn++);
        continue;
      }
      if (const std::vector<HeldRect>* have = source_of(key, need)) emit(key, need, *have, -1, 0);
    }
    return std::move(out_);
  }

 private:
  static Key key_of(const tensors::PartKey& key, tensors::StorageKind kind, int age) {
    return {kind, key.tensor, age, key.copy};
  }
  const std::vector<HeldRect>* find(const tensors::PartKey& key, tensors::StorageKind kind,
                                    int age) const {
    // If the new plan keeps more weight versions than the old one, the additional ones start as
    // copies of the newest.
    for (const int one : {age, 1})
      if (const auto it = have_.find(key_of(key, kind, one)); it != have_.end()) return &it->second;
    // What is each rank's own: a rank that is new begins with that of another one.
    if (kind != tensors::StorageKind::other)
      if (const auto it = have_.lower_bound({kind, key.tensor, 1, 0});
          it != have_.end() && std::get<0>(it->first) == kind &&
          std::get<1>(it->first) == key.tensor && std::get<2>(it->first) == 1)
        return &it->second;
    return nullptr;
  }

  /// The old state that a new state is copied from. Null: the new state starts with the value of a
  /// new run.
  const std::vector<HeldRect>* source_of(const tensors::PartKey& key, const HeldRect& need) const {
    const std::vector<HeldRect>* same = find(key, key.kind, key.age);
    if (key.kind == tensors::StorageKind::scale || key.kind == tensors::StorageKind::sum_residual)
      return same;
    if (key.kind == tensors::StorageKind::other)
      return same != nullptr && same->size() == 1 && same->front().rect == need.rect ? same
                                                                                     : nullptr;
    if (key.kind == tensors::StorageKind::param &&
        (same == nullptr || same->front().dtype != need.dtype))
      if (const std::vector<HeldRect>* master = find(key, tensors::StorageKind::master, 1))
        return master;
    if (key.kind == tensors::StorageKind::master && same == nullptr)
      same = find(key, tensors::StorageKind::param, 1);
    if (same == nullptr)
      throw InputError(
          fmt::format("the new plan needs the {} of {}, which the old one does not have: both must "
                      "have the same optimizer",
                      name_of(key.kind), key.tensor));
    return same;
  }

  /// Decides which new residual each old one is added to: the one whose ranks already hold most of
  /// it; among equals the one that gets the fewest old residuals.
  void settle_residuals() {
    std::map<std::string, Copies> places;
    for (const OwnedRect& part : new_parts_)
      if (part.key.kind == tensors::StorageKind::residual)
        places[part.key.tensor][part.key.copy].push_back(part.held);
    const auto owes = [](const std::string& tensor, const char* how) {
      throw InputError(
          fmt::format("the old plan still owes a part of the gradient of {}, and the new one has "
                      "no residual for it: begin with a dense plan, or go on with a {} one",
                      tensor, how));
    };
    std::set<std::string> of_sums;
    for (const OwnedRect& part : new_parts_)
      if (part.key.kind == tensors::StorageKind::sum_residual) of_sums.insert(part.key.tensor);
    for (const auto& [key, held] : have_)
      if (std::get<0>(key) == tensors::StorageKind::sum_residual &&
          !of_sums.contains(std::get<1>(key)))
        owes(std::get<1>(key), "quantised");
    for (const auto& [tensor, old_copies] : owed_) {
      const auto found = places.find(tensor);
      if (found == places.end()) owes(tensor, "sparse");
      for (const auto& [copy, held] : old_copies) {
        const std::vector<int>* fewest = nullptr;
        int best = 0;
        std::int64_t most = -1;
        for (const auto& [candidate, place] : found->second) {
          std::int64_t local = 0;
          for (const HeldRect& a : place)
            for (const HeldRect& b : held)
              if (a.rank == b.rank)
                if (const Rect both = common(a.rect, b.rect); !both.empty()) local += both.size();
          const std::vector<int>& gone = adds_to_[{tensor, candidate}];
          if (local < most || (local == most && gone.size() >= fewest->size())) continue;
          most = local, best = candidate, fewest = &gone;
        }
        adds_to_[{tensor, best}].push_back(copy);
      }
    }
  }

  /// Covers `need` with rectangles that ranks hold: first those of the rank itself, then those of
  /// the nearest ranks; among equally near ranks the one that sends least so far.
  std::vector<Taken> cover(const tensors::PartKey& key, const HeldRect& need,
                           const std::vector<HeldRect>& have) {
    std::vector<Taken> taken;
    std::vector<Rect> left = {need.rect};
    const auto take = [&](const HeldRect& from) {
      std::vector<Rect> rest;
      for (const Rect& rect : left) {
        if (const Rect both = common(rect, from.rect); !both.empty()) {
          taken.push_back({&from, both});
          if (from.rank != need.rank) load_[from.rank] += both.size();
        }
        for (const Rect& one : without(rect, from.rect)) rest.push_back(one);
      }
      left = std::move(rest);
    };
    std::vector<const HeldRect*> others;
    for (const HeldRect& from : have)
      if (from.rank == need.rank)
        take(from);
      else if (!common(from.rect, need.rect).empty())
        others.push_back(&from);
    if (left.empty()) return taken;
    const auto order = [&](const HeldRect* from) {
      return std::tuple(distance_ ? distance_(from->rank, need.rank) : 0.0, load_[from->rank],
                        from->rank, from->storage);
    };
    std::sort(others.begin(), others.end(),
              [&](const HeldRect* a, const HeldRect* b) { return order(a) < order(b); });
    for (const HeldRect* from : others)
      if (!left.empty()) take(*from);
    if (!left.empty())
      throw ProgramError(
          fmt::format("no rank has all of the {} of {}", name_of(key.kind), key.tensor));
    return taken;
  }

  PieceCopy copy_of(const HeldRect& need, const Taken& taken, std::int64_t row,
                    std::int64_t row_end, int item, int turn) const {
    PieceCopy copy{.from = taken.from->rank,
                   .to = need.rank,
                   .source = taken.from->storage,
                   .target = need.storage,
                   .rows = row_end - row,
                   .run = taken.rect.cols(),
                   .source_begin = taken.from->at(row, taken.rect.col),
                   .source_pitch = taken.from->pitch,
                   .target_begin = need.at(row, taken.rect.col),
                   .source_type = taken.from->dtype,
                   .target_type = need.dtype,
                   .item = item,
                   .turn = turn};
    if (copy.dense()) copy.run *= copy.rows, copy.rows = 1;
    return copy;
  }

  /// Emits the copies for `need`. Cuts it into bands of rows in which each provider has the same
  /// rows; a band of several rows with several providers becomes a RowAssembly.
  void emit(const tensors::PartKey& key, const HeldRect& need, const std::vector<HeldRect>& have,
            int item, int turn) {
    const std::vector<Taken> all = cover(key, need, have);
    std::set<std::int64_t> cuts = {need.rect.row, need.rect.row_end};
    for (const Taken& taken : all) cuts.insert({taken.rect.row, taken.rect.row_end});
    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
      std::vector<Taken> band;
      for (const Taken& taken : all)
        if (taken.rect.row <= *cut && *cut < taken.rect.row_end) band.push_back(taken);
      std::sort(band.begin(), band.end(),
                [](const Taken& a, const Taken& b) { return a.rect.col < b.rect.col; });
      const std::int64_t row = *cut, end = *std::next(cut);
      if (band.size() == 1 || end - row == 1)
        for (const Taken& taken : band)
          out_.copies.push_back(copy_of(need, taken, row, end, item, turn));
      else
        assemble(need, band, row, end, item, turn);
    }
  }

  /// Row assemblies for rows [row, end), each of at most `most_` elements (or one row).
  void assemble(const HeldRect& need, const std::vector<Taken>& band, std::int64_t row,
                std::int64_t end, int item, int turn) {
    const std::int64_t width = need.rect.cols();
    const std::int64_t step = std::max<std::int64_t>(1, most_ / width);
    for (; row < end; row += step) {
      const std::int64_t stop = std::min(end, row + step);
      RowAssembly assembly{.to = need.rank,
                           .target = need.storage,
                           .begin = need.at(row, need.rect.col),
                           .rows = stop - row,
                           .width = width,
                           .type = need.dtype,
                           .item = item,
                           .turn = turn};
      for (const Taken& taken : band) {
        assembly.pieces.push_back(out_.copies.size());
        out_.copies.push_back(copy_of(need, taken, row, stop, item, turn));
        out_.copies.back().assembly = static_cast<int>(out_.assemblies.size());
      }
      out_.assemblies.push_back(std::move(assembly));
    }
  }

  const std::vector<OwnedRect>& new_parts_;
  const std::function<double(Id, Id)>& distance_;
  std::int64_t most_;
  std::map<Key, std::vector<HeldRect>> have_ = {};
  std::map<std::string, Copies> owed_ = {};  // by tensor: the old residuals
  /// By (tensor, new copy number): the copy numbers of the old residuals that are added to it.
  std::map<std::pair<std::string, int>, std::vector<int>> adds_to_ = {};
  std::vector<std::int64_t> load_ = {};  // by rank: elements that it sends to others
  PieceMoves out_ = {};
};

}  // namespace

PieceMoves moves_between(const std::vector<OwnedRect>& old_parts,
                         const std::vector<OwnedRect>& new_parts,
                         const std::function<double(Id, Id)>& distance, std::int64_t most) {
  return Mover(old_parts, new_parts, distance, most).run();
}

}  // namespace rehearse::migration
