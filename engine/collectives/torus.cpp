// The ring's rounds on a torus of members, along all dimensions and both directions at a time (the
// bucket algorithm: Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on
// torus interconnects", ICS 2010). The tensor is divided over streams, one for each direction of
// each dimension. A reduce-scatter of one stream runs rings along its first dimension, then, with
// what is left of its share, along the next, and so on; an all-gather comes back in reverse order.
// Every stream begins with another dimension, so on a cube all cables work in every round. Streams
// of a torus of 4 x 4, an all-reduce:
//
//   rounds      0 - 2           3 - 5            6 - 8            9 - 11
//   stream 0    +x, whole rows  +y, a fourth     +y, a fourth     +x, whole rows
//   stream 1    -x              -y               -y               -x
//   stream 2    +y              +x               +x               +y
//   stream 3    -y              -x               -x               -y
//
// With N members each sends 2 (N - 1)/N of the tensor, divided equally over its cables.
#include <algorithm>
#include <set>

#include "engine/collectives/algorithms.h"

namespace rehearse::collectives {
namespace {

class TorusRings : public Schedule {
 public:
  TorusRings(program::Move move, std::vector<int> sizes, std::int64_t elements)
      : sizes_(std::move(sizes)), whole_(move == program::Move::all_reduce), elements_(elements) {
    for (const int size : sizes_) {
      strides_.push_back(members_);
      members_ *= size;
      steps_ += size - 1;
    }
    for (std::size_t d = 0; d < sizes_.size(); ++d)
      if (sizes_[d] > 1) busy_.push_back(d);
    scatter_ = move == program::Move::all_gather ? 0 : steps_;
    gather_ = move == program::Move::reduce_scatter ? 0 : steps_;
  }
  int members() const override { return members_; }
  int rounds() const override { return scatter_ + gather_; }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    for (int stream = 0; stream < streams(); ++stream) {
      const Turn turn = turn_of(stream, r);
      if (member < 0) {
        for (int m = 0; m < members_; ++m) send(stream, turn, m, out);
      } else {
        send(stream, turn, member, out);
        send(stream, turn, shifted(member, turn.order[turn.phase], -turn.direction), out);
      }
    }
  }
  std::vector<Repeat> distinct() const override {
    // Alike are the rounds between two in which some stream turns into another dimension.
    std::set<int> begins;
    for (int stream = 0; stream < streams(); ++stream) {
      int step = 0;
      for (const std::size_t d : order_of(stream)) {
        if (scatter_ > 0) begins.insert(step);
        if (gather_ > 0) begins.insert(scatter_ + steps_ - step - (sizes_[d] - 1));
        step += sizes_[d] - 1;
      }
    }
    std::vector<Repeat> out;
    for (auto it = begins.begin(); it != begins.end(); ++it)
      out.push_back({*it, (std::next(it) == begins.end() ? rounds() : *std::next(it)) - *it});
    return out;
  }

 private:
  /// What a stream does in a round.
  struct Turn {
    std::vector<std::size_t> order = {};  // its dimensions
    std::size_t phase = 0;                // it travels along order[phase]
    int direction = 1, shift = 0;  // shift: by how many members the part is behind the sender
    bool add = false;
  };
  int streams() const { return 2 * static_cast<int>(busy_.size()); }
  std::vector<std::size_t> order_of(int stream) const {
    std::vector<std::size_t> order = busy_;
    std::rotate(order.begin(), order.begin() + stream / 2, order.end());
    return order;
  }
  Turn turn_of(int stream, int r) const {
    Turn turn{
        .order = order_of(stream), .direction = stream % 2 == 0 ? 1 : -1, .add = r < scatter_};
    // A gather is the scatter backwards.
    int step = turn.add ? r : steps_ - 1 - (r - scatter_);
    while (step >= sizes_[turn.order[turn.phase]] - 1) step -= sizes_[turn.order[turn.phase++]] - 1;
    // In ring.cpp the parts of a scatter are 1, 2, ... behind their sender, of a gather 0, 1, ...
    turn.shift = turn.add ? step + 1 : sizes_[turn.order[turn.phase]] - 2 - step;
    return turn;
  }
  int coordinate(int member, std::size_t d) const { return member / strides_[d] % sizes_[d]; }
  int shifted(int member, std::size_t d, int by) const {
    const int c = coordinate(member, d);
    return member + ((c + by + sizes_[d]) % sizes_[d] - c) * strides_[d];
  }
  /// What `member` sends to its neighbour: of what it has in this phase, the part of the coordinate
  /// that is `shift` behind its own.
  void send(int stream, const Turn& turn, int member, std::vector<Transfer>& out) const {
    const std::size_t d = turn.order[turn.phase];
    const int to = shifted(member, d, turn.direction);
    const int of = shifted(member, d, -turn.direction * turn.shift % sizes_[d]);
    if (whole_)
      push_nested(stream, turn, member, to, of, out);
    else
      push_parts(stream, turn, member, to, of, out);
  }
  /// An all-reduce may cut its share as it likes: each phase cuts what the one before left.
  void push_nested(int stream, const Turn& turn, int member, int to, int of,
                   std::vector<Transfer>& out) const {
    std::int64_t begin = part(elements_, stream, streams());
    std::int64_t size = part(elements_, stream + 1, streams()) - begin;
    for (std::size_t p = 0; p <= turn.phase; ++p) {
      const std::size_t d = turn.order[p];
      const int c = coordinate(p == turn.phase ? of : member, d);
      const std::int64_t first = part(size, c, sizes_[d]);
      size = part(size, c + 1, sizes_[d]) - first;
      begin += first;
    }
    push(out, member, to, begin, begin + size, turn.add);
  }
  /// Parts of a reduce-scatter and an all-gather belong to members: the stream's share of the parts
  /// of all members with the coordinates of `member` in earlier phases and of `of` in this one.
  void push_parts(int stream, const Turn& turn, int member, int to, int of,
                  std::vector<Transfer>& out) const {
    for (int p = 0; p < members_; ++p) {
      bool mine = coordinate(p, turn.order[turn.phase]) == coordinate(of, turn.order[turn.phase]);
      for (std::size_t before = 0; mine && before < turn.phase; ++before)
        mine = coordinate(p, turn.order[before]) == coordinate(member, turn.order[before]);
      if (!mine) continue;
      const std::int64_t first = part(elements_, p, members_);
      const std::int64_t size = part(elements_, p + 1, members_) - first;
      push(out, member, to, first + part(size, stream, streams()),
           first + part(size, stream + 1, streams()), turn.add);
    }
  }

  std::vector<int> sizes_, strides_ = {};
  std::vector<std::size_t> busy_ = {};  // dimensions with several members
  int members_ = 1, steps_ = 0, scatter_ = 0, gather_ = 0;
  bool whole_;
  std::int64_t elements_;
};

}  // namespace

std::unique_ptr<const Schedule> torus_rings(program::Move move, std::vector<int> sizes,
                                            std::int64_t elements) {
  return std::make_unique<TorusRings>(move, std::move(sizes), elements);
}

}  // namespace rehearse::collectives
