// Direct algorithms: every member sends straight to the destination. Reduce and broadcast are a
// star around the root, in one round, and so are gather and scatter; all-reduce is both.
// Reduce-scatter, all-gather and all-to-all take n - 1 rounds. In each round every member sends to
// a different one, so no member receives from all others at once. With three members:
//
//   round 0: 0 -> 1, 1 -> 2, 2 -> 0     round 1: 0 -> 2, 1 -> 0, 2 -> 1
//
// A rotate is one such round, with whole tensors.
#include "engine/collectives/algorithms.h"

namespace rehearse::collectives {
namespace {

class Star : public Schedule {  // reduce, broadcast, all_reduce
 public:
  Star(program::Move move, int n, std::int64_t elements, int root)
      : move_(move), n_(n), root_(root), elements_(elements) {}
  int members() const override { return n_; }
  int rounds() const override { return move_ == program::Move::all_reduce ? 2 : 1; }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    const bool in = r == 0 && move_ != program::Move::broadcast;
    for (int i = 0; i < n_; ++i) {
      if (i == root_ || (member >= 0 && member != root_ && member != i)) continue;
      push(out, in ? i : root_, in ? root_ : i, 0, elements_, in);
    }
  }
  std::int64_t sent(int member) const override {
    if (member != root_) return move_ == program::Move::broadcast ? 0 : elements_;
    return move_ == program::Move::reduce ? 0 : (n_ - 1) * elements_;
  }

 private:
  program::Move move_;
  int n_, root_;
  std::int64_t elements_;
};

class StarOfParts : public Schedule {  // gather, scatter
 public:
  StarOfParts(program::Move move, int n, std::int64_t elements, int root)
      : gather_(move == program::Move::gather), n_(n), root_(root), elements_(elements) {}
  int members() const override { return n_; }
  int rounds() const override { return 1; }
  void round(int, int member, std::vector<Transfer>& out) const override {
    for (int i = 0; i < n_; ++i) {
      if (i == root_ || (member >= 0 && member != root_ && member != i)) continue;
      const std::int64_t begin = part(elements_, i, n_), size = size_of(i);
      if (gather_)
        push(out, i, root_, 0, size, false, begin);
      else
        push(out, root_, i, begin, begin + size, false, -begin);
    }
  }
  std::int64_t sent(int member) const override {
    if (gather_) return member == root_ ? 0 : size_of(member);
    return member == root_ ? elements_ - size_of(root_) : 0;
  }

 private:
  std::int64_t size_of(int i) const { return part(elements_, i + 1, n_) - part(elements_, i, n_); }
  bool gather_;
  int n_, root_;
  std::int64_t elements_;
};

class Rotation : public Schedule {  // reduce_scatter, all_gather, all_to_all
 public:
  Rotation(program::Move move, int n, std::int64_t elements)
      : move_(move), n_(n), elements_(elements) {}
  int members() const override { return n_; }
  int rounds() const override { return n_ - 1; }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    if (member < 0) {
      for (int i = 0; i < n_; ++i) send(r, i, out);
    } else {
      send(r, member, out);
      send(r, (member + n_ - 1 - r) % n_, out);
    }
  }
  // All-gather: sends its own part to all others. The other moves: sends their parts to all others.
  std::int64_t sent(int member) const override {
    const std::int64_t own = part(elements_, member + 1, n_) - part(elements_, member, n_);
    return move_ == program::Move::all_gather ? (n_ - 1) * own : elements_ - own;
  }

 private:
  void send(int r, int i, std::vector<Transfer>& out) const {
    const int to = (i + r + 1) % n_, p = move_ == program::Move::all_gather ? i : to;
    const std::int64_t begin = part(elements_, p, n_);
    const std::int64_t shift =
        move_ == program::Move::all_to_all ? part(elements_, i, n_) - begin : 0;
    push(out, i, to, begin, part(elements_, p + 1, n_), move_ == program::Move::reduce_scatter,
         shift);
  }
  program::Move move_;
  int n_;
  std::int64_t elements_;
};

class Rotate : public Schedule {
 public:
  Rotate(int n, std::int64_t elements, int distance)
      : n_(n), distance_(distance), elements_(elements) {}
  int members() const override { return n_; }
  int rounds() const override { return 1; }
  void round(int, int member, std::vector<Transfer>& out) const override {
    if (member < 0) {
      for (int i = 0; i < n_; ++i) send(i, out);
    } else {
      send(member, out);
      send((member + n_ - distance_) % n_, out);
    }
  }

 private:
  void send(int i, std::vector<Transfer>& out) const {
    push(out, i, (i + distance_) % n_, 0, elements_, false);
  }
  int n_, distance_;
  std::int64_t elements_;
};

}  // namespace

std::unique_ptr<const Schedule> direct(program::Move move, int members, std::int64_t elements,
                                       int root) {
  if (move == program::Move::reduce_scatter || move == program::Move::all_gather ||
      move == program::Move::all_to_all)
    return std::make_unique<Rotation>(move, members, elements);
  if (move == program::Move::rotate) return std::make_unique<Rotate>(members, elements, root);
  if (parts_of_root(move)) return std::make_unique<StarOfParts>(move, members, elements, root);
  return std::make_unique<Star>(move, members, elements, root);
}

}  // namespace rehearse::collectives
