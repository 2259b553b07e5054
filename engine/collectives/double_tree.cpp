// Two binary trees (Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", Parallel Computing 2009; NCCL's all-reduce across nodes). Each tree carries
// half of the elements. The inner members of one tree are the leaves of the other. Seven members:
//
//             tree 0                     tree 1
//                0                          0         root
//                |                          |
//                4                          3
//            .---+---.                  .---+---.
//            2       6                  1       5
//          .-+-.   .-+                  +-.   .-+-.
//          1   3   5                      2   4   6
//
// The edges have two colours, and an edge is used in every second round, by its colour. In every
// round a member sends at most one piece and receives at most one, so the trees have full bandwidth
// and logarithmic latency. All-reduce is a reduction to the root and then the same rounds in
// reverse. With a single piece there is no bandwidth to gain: colours are ignored, and each edge is
// used as soon as possible, in 2 x height rounds.
#include <algorithm>
#include <array>
#include <bit>

#include "engine/collectives/algorithms.h"

namespace rehearse::collectives {
namespace {

// The parent of position p in an in-order binary tree on positions 1 to m, in which odd positions
// are leaves: clears the lowest set bit of p and sets the next higher one, and repeats this while
// the result is beyond m. 0: p is the top of the tree, and its parent is the root member.
int parent_of(int p, int m) {
  do {
    const int low = p & -p;
    if (static_cast<unsigned>(p) == std::bit_floor(static_cast<unsigned>(p)) && 2 * p > m) return 0;
    p = (p - low) | (low << 1);
  } while (p > m);
  return p;
}

// Members count from the root (0). In tree 1, positions are mirrored (m even) or shifted by one (m
// odd). Both turn odd positions into even ones, so leaves become inner members.
int position(int v, int tree, int m) {
  if (tree == 0) return v;
  return m % 2 == 0 ? m + 1 - v : v == 1 ? m : v - 1;
}
int node_at(int p, int tree, int m) {
  if (p == 0 || tree == 0) return p;
  return m % 2 == 0 ? m + 1 - p : p == m ? 1 : p + 1;
}

class DoubleTree : public Schedule {
 public:
  DoubleTree(program::Move move, int n, std::int64_t elements, int root)
      : move_(move), n_(n), root_(root), elements_(elements), pieces_(pieces(elements / 2)) {
    parent_ = two_trees(n);
    for (int tree = 0; tree < 2; ++tree) {
      children_[at(tree)].assign(at(n), {0, 0});
      for (int v = 1; v < n; ++v) {
        auto& c = children_[at(tree)][at(parent_[at(tree)][at(v)])];
        (c[0] == 0 ? c[0] : c[1]) = v;
      }
      start_[at(tree)].assign(at(n), 0);
    }
    colour();
    for (int tree = 0; tree < 2; ++tree)
      for (int v = 1; v < n; ++v)
        if (parent_[at(tree)][at(v)] == 0) time(tree, v);
    for (const auto& s : start_)
      last_start_ = std::max(last_start_, *std::max_element(s.begin() + 1, s.end()));
  }
  int members() const override { return n_; }
  int rounds() const override { return phase() * (move_ == program::Move::all_reduce ? 2 : 1); }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    const bool up = move_ != program::Move::broadcast && r < phase();
    const int t = up ? r : rounds() - 1 - r;
    for (int tree = 0; tree < 2; ++tree) {
      if (member < 0) {
        for (int v = 1; v < n_; ++v) edge(t, tree, v, up, out);
      } else {
        const int v = (member - root_ + n_) % n_;
        for (int c : children_[at(tree)][at(v)])
          if (c > 0) edge(t, tree, c, up, out);
        if (v > 0) edge(t, tree, v, up, out);
      }
    }
  }
  std::vector<Repeat> distinct() const override {
    std::vector<Repeat> out;
    // From `first` to `last`, all edges of a round's colour are busy, so every second round is
    // alike.
    const int first = last_start_, last = stride() * (pieces_ - 1);
    for (int r = 0; r < rounds(); ++r) {
      const bool up = move_ != program::Move::broadcast && r < phase();
      const int t = up ? r : rounds() - 1 - r;
      const bool steady = pieces_ > 1 && first <= t && t <= last;
      if (!steady) {
        out.push_back({r, 1});
      } else if (up ? t < first + 2 : t > last - 2) {
        const int same = up ? (last - t) / 2 : (t - first) / 2;
        out.push_back({r, same + 1});
      }
    }
    return out;
  }

  std::int64_t sent(int member) const override {
    const int v = (member - root_ + n_) % n_;
    std::int64_t out = 0;
    for (int tree = 0; tree < 2; ++tree) {
      const std::int64_t size = tree ? elements_ - elements_ / 2 : elements_ / 2;
      if (v > 0 && move_ != program::Move::broadcast) out += size;
      if (move_ != program::Move::reduce)
        for (int c : children_[at(tree)][at(v)]) out += c > 0 ? size : 0;
    }
    return out;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  int stride() const { return pieces_ > 1 ? 2 : 1; }
  int phase() const { return last_start_ + stride() * (pieces_ - 1) + 1; }
  // Colours the edges of both trees so that no member sends (or receives) two pieces of a colour.
  // Senders and receivers form a bipartite graph in which every vertex has at most two edges, that
  // is, paths and even cycles. Colours alternate along each of them.
  void colour() {
    for (auto& c : colour_) c.assign(at(n_), -1);
    for (int tree = 0; tree < 2; ++tree)
      for (int v = 1; v < n_; ++v) {
        // Walks in both directions, because v may be in the middle of a path.
        if (colour_[at(tree)][at(v)] >= 0) continue;
        colour_[at(tree)][at(v)] = 0;
        walk(tree, v, true);
        walk(tree, v, false);
      }
  }
  // Colours the edges that follow edge v: the next one shares its sender, the one after that its
  // receiver, and so on; or the other way round if not `by_sender`.
  void walk(int tree, int v, bool by_sender) {
    int c = colour_[at(tree)][at(v)];
    for (;;) {
      if (by_sender) {
        tree = 1 - tree;
      } else {
        const int p = parent_[at(tree)][at(v)];
        int other = sibling(tree, v, p);
        if (other == 0) return;
        v = other;
        if (p == 0) tree = 1 - tree;  // the root has one edge in each tree
      }
      if (colour_[at(tree)][at(v)] >= 0) return;
      c = 1 - c;
      colour_[at(tree)][at(v)] = c;
      by_sender = !by_sender;
    }
  }
  int sibling(int tree, int v, int p) const {
    if (p == 0) return children_[at(1 - tree)][0][0];
    const auto& c = children_[at(tree)][at(p)];
    return c[0] == v ? c[1] : c[0];
  }
  // Sets and returns the first round of the edge from v to its parent: after those of v's children,
  // and of the parity of its colour.
  int time(int tree, int v) {
    int t = 0;
    for (int c : children_[at(tree)][at(v)])
      if (c > 0) t = std::max(t, time(tree, c) + 1);
    if (pieces_ > 1 && t % 2 != colour_[at(tree)][at(v)]) ++t;
    return start_[at(tree)][at(v)] = t;
  }
  void edge(int t, int tree, int v, bool up, std::vector<Transfer>& out) const {
    const int k = t - start_[at(tree)][at(v)];
    if (k < 0 || k % stride() != 0 || k / stride() >= pieces_) return;
    const std::int64_t half = elements_ / 2, base = tree ? half : 0;
    const std::int64_t size = tree ? elements_ - half : half;
    const std::int64_t begin = base + part(size, k / stride(), pieces_);
    const std::int64_t end = base + part(size, k / stride() + 1, pieces_);
    const int child = (v + root_) % n_, parent = (parent_[at(tree)][at(v)] + root_) % n_;
    up ? push(out, child, parent, begin, end, true) : push(out, parent, child, begin, end, false);
  }
  program::Move move_;
  int n_, root_;
  std::int64_t elements_;
  int pieces_, last_start_ = 0;
  std::array<std::vector<int>, 2> parent_ = {}, start_ = {}, colour_ = {};  // by tree, member
  std::array<std::vector<std::array<int, 2>>, 2> children_ = {};
};

}  // namespace

std::array<std::vector<int>, 2> two_trees(int n) {
  const int m = n - 1;
  std::array<std::vector<int>, 2> parent;
  for (int tree = 0; tree < 2; ++tree) {
    std::vector<int>& of = parent[static_cast<std::size_t>(tree)];
    of.assign(static_cast<std::size_t>(n), 0);
    for (int v = 1; v < n; ++v)
      of[static_cast<std::size_t>(v)] = node_at(parent_of(position(v, tree, m), m), tree, m);
  }
  return parent;
}

std::unique_ptr<const Schedule> double_tree(program::Move move, int members, std::int64_t elements,
                                            int root) {
  return std::make_unique<DoubleTree>(move, members, elements, root);
}

}  // namespace rehearse::collectives
