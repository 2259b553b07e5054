// Recursive halving and doubling (Thakur, Rabenseifner and Gropp, "Optimization of Collective
// Communication Operations in MPICH", IJHPCA 2005). Halving is a reduce-scatter, doubling an
// all-gather, each of log2 n rounds; an all-reduce is both. Parts that four members send:
//
//   member           0            1            2            3
//   round 0      2,3 to 2     2,3 to 3     0,1 to 0     0,1 to 1     halving (add)
//   round 1        1 to 1       0 to 0       3 to 3       2 to 2
//   round 2        0 to 1       1 to 0       2 to 3       3 to 2     doubling (store)
//   round 3      0,1 to 2     0,1 to 3     2,3 to 0     2,3 to 1
//
// If n is not a power of two, let p be the largest power of two below n. In a first round, member
// p + j sends its data to member j, and in a last round it receives its result from member j.
#include <algorithm>
#include <bit>

#include "engine/collectives/algorithms.h"

namespace rehearse::collectives {
namespace {

class HalvingDoubling : public Schedule {
 public:
  HalvingDoubling(program::Move move, int n, std::int64_t elements)
      : n_(n),
        p_(static_cast<int>(std::bit_floor(static_cast<unsigned>(n)))),
        log_(std::countr_zero(static_cast<unsigned>(p_))),
        move_(move),
        parts_(move == program::Move::all_reduce ? p_ : n),
        elements_(elements) {}
  int members() const override { return n_; }
  int rounds() const override {
    return fold() * 2 + log_ * (move_ == program::Move::all_reduce ? 2 : 1);
  }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    if (fold() && (r == 0 || r == rounds() - 1)) {
      const int mine = member < p_ ? member : member - p_;
      const int first = member < 0 ? 0 : mine, last = member < 0 ? n_ - p_ : mine + 1;
      for (int j = first; j < std::min(last, n_ - p_); ++j)
        r == 0 ? fold_in(j, out) : fold_out(j, out);
      return;
    }
    const int step = r - fold();
    const bool halve = move_ != program::Move::all_gather && step < log_;
    const int doubled = move_ == program::Move::all_reduce ? step - log_ : step;
    const int distance = halve ? p_ >> (step + 1) : 1 << doubled;
    if (member < 0) {
      for (int i = 0; i < p_; ++i) send(i, distance, halve, out);
    } else if (member < p_) {
      send(member, distance, halve, out);
      send(member ^ distance, distance, halve, out);
    }
  }

 private:
  int fold() const { return n_ > p_ ? 1 : 0; }
  std::int64_t at(int i) const { return part(elements_, i, parts_); }
  // In halving, member i sends the half of its range that its partner keeps; in doubling, all that
  // it has. Member j also handles part p + j, if member p + j exists.
  void send(int i, int distance, bool halve, std::vector<Transfer>& out) const {
    const int to = i ^ distance, owner = halve ? to : i, first = owner / distance * distance;
    push(out, i, to, at(first), at(first + distance), halve);
    if (parts_ > p_ && p_ + first < n_) {
      const int last = p_ + first + distance;
      push(out, i, to, at(p_ + first), at(last < n_ ? last : n_), halve);
    }
  }
  void fold_in(int j, std::vector<Transfer>& out) const {
    if (move_ == program::Move::all_gather)
      push(out, p_ + j, j, at(p_ + j), at(p_ + j + 1), false);
    else
      push(out, p_ + j, j, 0, elements_, true);
  }
  void fold_out(int j, std::vector<Transfer>& out) const {
    if (move_ == program::Move::reduce_scatter) {
      push(out, j, p_ + j, at(p_ + j), at(p_ + j + 1), false);
    } else if (move_ == program::Move::all_gather) {
      push(out, j, p_ + j, 0, at(p_ + j), false);
      push(out, j, p_ + j, at(p_ + j + 1), elements_, false);
    } else {
      push(out, j, p_ + j, 0, elements_, false);
    }
  }
  int n_, p_, log_;
  program::Move move_;
  int parts_;
  std::int64_t elements_;
};

}  // namespace

std::unique_ptr<const Schedule> halving_doubling(program::Move move, int members,
                                                 std::int64_t elements) {
  return std::make_unique<HalvingDoubling>(move, members, elements);
}

}  // namespace rehearse::collectives
