// The ring (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009). An all-reduce
// has n - 1 rounds of reduce-scatter and n - 1 of all-gather; in each round every member sends one
// of n parts to its right neighbour. Parts that four members send:
//
//              reduce-scatter (add)   all-gather (store)
//   round        0     1     2          3     4     5
//   0 -> 1       3     2     1          0     3     2
//   1 -> 2       0     3     2          1     0     3
//   2 -> 3       1     0     3          2     1     0
//   3 -> 0       2     1     0          3     2     1
//
// After round 2, member i holds the sum of part i. Broadcast and reduce open the ring into a chain
// and pipeline it (pipelined_tree).
#include <algorithm>

#include "engine/collectives/algorithms.h"

namespace rehearse::collectives {
namespace {

class Ring : public Schedule {
 public:
  Ring(program::Move move, int n, std::int64_t elements)
      : n_(n),
        scatter_(move == program::Move::all_gather ? 0 : n - 1),
        gather_(move == program::Move::reduce_scatter ? 0 : n - 1),
        elements_(elements) {}
  int members() const override { return n_; }
  int rounds() const override { return scatter_ + gather_; }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    if (member < 0) {
      for (int i = 0; i < n_; ++i) send(r, i, out);
    } else {
      send(r, member, out);
      send(r, (member + n_ - 1) % n_, out);
    }
  }
  std::vector<Repeat> distinct() const override {
    if (rounds() == 0) return {};
    return {{0, rounds()}};
  }
  std::int64_t sent(int member) const override {  // in each phase all parts but one
    return (scatter_ ? elements_ - size(member) : 0) +
           (gather_ ? elements_ - size((member + 1) % n_) : 0);
  }

 private:
  std::int64_t size(int i) const { return part(elements_, i + 1, n_) - part(elements_, i, n_); }
  // In the reduce-scatter, member i first sends part i - 1, so that the sum of part i reaches
  // member i in the last round. In the all-gather, it first sends part i.
  void send(int r, int i, std::vector<Transfer>& out) const {
    const bool add = r < scatter_;
    const int shift = add ? r + 1 : r - scatter_;
    const int p = (i - shift + n_) % n_;
    push(out, i, (i + 1) % n_, part(elements_, p, n_), part(elements_, p + 1, n_), add);
  }
  int n_, scatter_, gather_;
  std::int64_t elements_;
};

class PipelinedTree : public Schedule {
 public:
  PipelinedTree(std::vector<int> parent, std::int64_t elements, bool reduce)
      : parent_(std::move(parent)),
        depth_(parent_.size(), -1),
        first_child_(parent_.size() + 1, 0),
        children_(parent_.size(), 0),
        elements_(elements),
        pieces_(pieces(elements)),
        reduce_(reduce) {
    const int n = members();
    for (int v = 0; v < n; ++v) depth_of(v);
    for (int v : depth_) height_ = std::max(height_, v);
    for (int v = 0; v < n; ++v)
      if (parent_[at(v)] >= 0) ++first_child_[at(parent_[at(v)]) + 1];
    for (std::size_t v = 0; v < at(n); ++v) first_child_[v + 1] += first_child_[v];
    std::vector<int> next(first_child_.begin(), first_child_.end() - 1);
    for (int v = 0; v < n; ++v)
      if (parent_[at(v)] >= 0) children_[at(next[at(parent_[at(v)])]++)] = v;
  }
  int members() const override { return static_cast<int>(parent_.size()); }
  int rounds() const override { return height_ - 1 + pieces_; }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    if (member < 0) {
      for (int v = 0; v < members(); ++v) edge(r, v, out);
    } else {
      for (int c = first_child_[at(member)]; c < first_child_[at(member) + 1]; ++c)
        edge(r, children_[at(c)], out);
      edge(r, member, out);
    }
  }
  std::vector<Repeat> distinct() const override {
    std::vector<Repeat> out;
    const int first = height_ - 1, last = pieces_ - 1;  // in these rounds every edge is busy
    for (int r = 0; r < rounds(); ++r) {
      if (first <= r && r <= last) {
        if (r == first) out.push_back({r, last - first + 1});
      } else {
        out.push_back({r, 1});
      }
    }
    return out;
  }

  std::int64_t sent(int member) const override {
    if (reduce_) return parent_[at(member)] < 0 ? 0 : elements_;
    return elements_ * (first_child_[at(member) + 1] - first_child_[at(member)]);
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  int depth_of(int v) {
    std::vector<int> way;
    while (v >= 0 && depth_[at(v)] < 0) way.push_back(v), v = parent_[at(v)];
    int d = v < 0 ? -1 : depth_[at(v)];
    while (!way.empty()) depth_[at(way.back())] = ++d, way.pop_back();
    return d;
  }
  void edge(int r, int v, std::vector<Transfer>& out) const {
    const int p = parent_[at(v)];
    if (p < 0) return;
    const int start = reduce_ ? height_ - depth_[at(v)] : depth_[at(v)] - 1;
    const int k = r - start;
    if (k < 0 || k >= pieces_) return;
    const std::int64_t begin = part(elements_, k, pieces_), end = part(elements_, k + 1, pieces_);
    reduce_ ? push(out, v, p, begin, end, true) : push(out, p, v, begin, end, false);
  }
  std::vector<int> parent_, depth_, first_child_, children_;
  std::int64_t elements_;
  int pieces_, height_ = 0;
  bool reduce_;
};

}  // namespace

std::unique_ptr<const Schedule> pipelined_tree(std::vector<int> parent, std::int64_t elements,
                                               bool reduce) {
  return std::make_unique<PipelinedTree>(std::move(parent), elements, reduce);
}

std::unique_ptr<const Schedule> ring(program::Move move, int members, std::int64_t elements,
                                     int root) {
  if (move == program::Move::broadcast || move == program::Move::reduce) {
    std::vector<int> parent(static_cast<std::size_t>(members));
    for (int v = 0; v < members; ++v)
      parent[static_cast<std::size_t>(v)] = v == root ? -1 : (v + members - 1) % members;
    return pipelined_tree(std::move(parent), elements, move == program::Move::reduce);
  }
  return std::make_unique<Ring>(move, members, elements);
}

}  // namespace rehearse::collectives
