// Several rings at a time, one over each Hamiltonian cycle of a machine whose devices are joined by
// cables (NVLink's cube mesh). Each part of the tensor is divided over the rings, so each ring
// moves its share as the single ring does (ring.cpp), and together they use all cables:
//
//   0 ---- 1        ring A  0 > 1 > 2 > 3 > 0     first half of each part
//   | \  / |        ring B  0 > 3 > 1 > 2 > 0     second half of each part
//   3 ---- 2
#include "engine/collectives/algorithms.h"

namespace rehearse::collectives {
namespace {

class SeveralRings : public Schedule {
 public:
  SeveralRings(program::Move move, std::vector<std::vector<int>> rings, std::int64_t elements)
      : rings_(std::move(rings)),
        position_(rings_.size()),
        n_(static_cast<int>(rings_.front().size())),
        scatter_(move == program::Move::all_gather ? 0 : n_ - 1),
        gather_(move == program::Move::reduce_scatter ? 0 : n_ - 1),
        elements_(elements) {
    for (std::size_t r = 0; r < rings_.size(); ++r) {
      position_[r].resize(rings_[r].size());
      for (int i = 0; i < n_; ++i) position_[r][at(rings_[r][at(i)])] = i;
    }
  }
  int members() const override { return n_; }
  int rounds() const override { return scatter_ + gather_; }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
      if (member < 0) {
        for (int i = 0; i < n_; ++i) send(ring, r, i, out);
      } else {
        const int i = position_[ring][at(member)];
        send(ring, r, i, out);
        send(ring, r, (i + n_ - 1) % n_, out);
      }
    }
  }
  std::vector<Repeat> distinct() const override { return {{0, rounds()}}; }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  /// The transfer of the member at position i of the ring. The shifts are those of the single ring;
  /// part p of the tensor belongs to the member at position p.
  void send(std::size_t ring, int r, int i, std::vector<Transfer>& out) const {
    const bool add = r < scatter_;
    const int shift = add ? r + 1 : r - scatter_;
    const std::vector<int>& order = rings_[ring];
    const int p = order[at((i - shift + n_) % n_)];
    const std::int64_t first = part(elements_, p, n_), size = part(elements_, p + 1, n_) - first;
    const auto count = static_cast<std::int64_t>(rings_.size());
    const auto mine = static_cast<std::int64_t>(ring);
    push(out, order[at(i)], order[at((i + 1) % n_)], first + part(size, mine, count),
         first + part(size, mine + 1, count), add);
  }

  std::vector<std::vector<int>> rings_;     // [ring][position]: member
  std::vector<std::vector<int>> position_;  // [ring][member]: position
  int n_, scatter_, gather_;
  std::int64_t elements_;
};

}  // namespace

std::unique_ptr<const Schedule> several_rings(program::Move move,
                                              std::vector<std::vector<int>> rings,
                                              std::int64_t elements) {
  return std::make_unique<SeveralRings>(move, std::move(rings), elements);
}

}  // namespace rehearse::collectives
