// Two binary trees at once (Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth
// broadcast, reduction and scan", Parallel Computing 2009; NCCL's all-reduce across nodes). Who is
// inside one tree is a leaf of the other, each tree carries half of the data, and the edges are
// coloured with two colours so that in every round a member sends at most one piece and receives at
// most one: full bandwidth with logarithmic latency. All-reduce = reduction to the root, then the
// same rounds backwards. A payload of a single piece has no bandwidth to gain: its edges go as soon
// as they can, in 2 x height rounds.
#include <algorithm>
#include <array>
#include <bit>

#include "engine/collectives/algorithms.h"

namespace rehearse::collectives {
namespace {

// In-order binary tree on positions 1..m: odd positions are leaves; the parent of p is above it at
// the next power of two, or, where that is beyond m, further up; 0 stands for the root member
// above.
int parent_of(int p, int m) {
  do {
    const int low = p & -p;
    if (static_cast<unsigned>(p) == std::bit_floor(static_cast<unsigned>(p)) && 2 * p > m) return 0;
    p = (p - low) | (low << 1);
  } while (p > m);
  return p;
}

class DoubleTree : public Schedule {
 public:
  DoubleTree(program::Move move, int n, std::int64_t elements, int root)
      : move_(move), n_(n), root_(root), elements_(elements), pieces_(pieces(elements / 2)) {
    const int m = n - 1;
    for (int tree = 0; tree < 2; ++tree) {
      parent_[at(tree)].assign(at(n), 0);
      for (int v = 1; v < n; ++v)
        parent_[at(tree)][at(v)] = node_at(parent_of(position(v, tree, m), m), tree, m);
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
    const int first = last_start_, last = stride() * (pieces_ - 1);  // all edges of a colour busy
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
  // Members are numbered from the root (0). In the second tree positions are mirrored (m even) or
  // shifted (m odd): either way odd becomes even, so leaves become insiders.
  static int position(int v, int tree, int m) {
    if (tree == 0) return v;
    return m % 2 == 0 ? m + 1 - v : v == 1 ? m : v - 1;
  }
  static int node_at(int p, int tree, int m) {
    if (p == 0 || tree == 0) return p;
    return m % 2 == 0 ? m + 1 - p : p == m ? 1 : p + 1;
  }
  // Senders and receivers form a bipartite graph in which nobody has more than two edges, hence
  // paths and even cycles: walk each, alternating.
  void colour() {
    for (auto& c : colour_) c.assign(at(n_), -1);
    for (int tree = 0; tree < 2; ++tree)
      for (int v = 1; v < n_; ++v) {
        // A path must be entered at one of its ends; going both ways from v does that too.
        if (colour_[at(tree)][at(v)] >= 0) continue;
        colour_[at(tree)][at(v)] = 0;
        walk(tree, v, true);
        walk(tree, v, false);
      }
  }
  // From an edge on to the next one that shares its sender, then its receiver, and so on.
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
        if (p == 0) tree = 1 - tree;  // the root's two edges come from the two trees
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

std::unique_ptr<const Schedule> double_tree(program::Move move, int members, std::int64_t elements,
                                            int root) {
  return std::make_unique<DoubleTree>(move, members, elements, root);
}

}  // namespace rehearse::collectives
