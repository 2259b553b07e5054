// Hierarchical collectives (Thakur et al. 2005, section 4; also in NCCL and Horovod). An all-reduce
// is a ring reduce-scatter inside each node, ring all-reduces across nodes, and a ring all-gather
// inside each node. So, with K nodes, each node sends only 2 (K - 1) / K tensors to other nodes.
//
// Nodes may have unequal numbers of members. A node of L members cuts the tensor into L shares. A
// segment is the interval between two neighbouring cuts of any nodes. Each segment has one owner in
// every node, and its owners form a ring across nodes. Node 0 with members 0, 1 and node 1 with 2,
// 3, 4:
//
//   shares of node 0    |-------- 0 --------|-------- 1 --------|
//   shares of node 1    |----- 2 ----|----- 3 -----|---- 4 -----|
//   ring of owners      |    0, 2    | 0, 3 | 1, 3 |    1, 4    |
//
// Reduce-scatter and all-gather must leave part i at member i (parts: schedule.h). For every part,
// each node has an agent: the member whose position in the node corresponds to that of the part's
// member in its own node. A reduce-scatter is a ring inside each node, over the sets of parts of
// its agents, and then rings of agents across nodes; an all-gather is the reverse.
#include <algorithm>
#include <map>

#include "engine/collectives/algorithms.h"

namespace rehearse::collectives {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct Nodes {
  explicit Nodes(std::span<const Id> node_of) {
    std::map<Id, int> index;
    for (std::size_t i = 0; i < node_of.size(); ++i) {
      auto [it, fresh] = index.try_emplace(node_of[i], static_cast<int>(index.size()));
      if (fresh) members.emplace_back();
      node.push_back(it->second);
      local.push_back(static_cast<int>(members[at(it->second)].size()));
      members[at(it->second)].push_back(static_cast<int>(i));
    }
    for (const auto& m : members) widest = std::max(widest, static_cast<int>(m.size()));
  }
  int count() const { return static_cast<int>(members.size()); }
  int width(int k) const { return static_cast<int>(members[at(k)].size()); }
  std::vector<std::vector<int>> members = {};  // by node, in member order
  std::vector<int> node = {}, local = {};      // by member
  int widest = 0;
};

// What AllReduce and Parts share. `inside`: rounds of a ring inside the widest node; narrower nodes
// finish earlier. `across`: rounds of a ring across nodes.
class TwoLevel : public Schedule {
 public:
  TwoLevel(std::span<const Id> node_of, std::int64_t count)
      : nodes(node_of), elements(count), inside(nodes.widest - 1), across(nodes.count() - 1) {}
  int members() const override { return static_cast<int>(nodes.node.size()); }

 protected:
  void inside_repeats(int begin, std::vector<Repeat>& out) const {
    // A node of L members is busy in rounds 0 to L - 2. All rounds between two widths are alike.
    std::vector<int> widths;
    widths.reserve(nodes.members.size() + 1);
    for (int k = 0; k < nodes.count(); ++k) widths.push_back(nodes.width(k) - 1);
    widths.push_back(0);
    std::sort(widths.begin(), widths.end());
    for (std::size_t i = 0; i + 1 < widths.size(); ++i)
      if (widths[i] < widths[i + 1]) out.push_back({begin + widths[i], widths[i + 1] - widths[i]});
  }
  Nodes nodes;
  std::int64_t elements;
  int inside, across;
};

class AllReduce : public TwoLevel {
 public:
  AllReduce(std::span<const Id> node_of, std::int64_t elements) : TwoLevel(node_of, elements) {
    for (int k = 0; k < nodes.count(); ++k)
      for (int i = 0; i <= nodes.width(k); ++i) cuts_.push_back(share(k, i));
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  }
  int rounds() const override { return 2 * inside + 2 * across; }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    const int first = member < 0 ? 0 : nodes.node[at(member)];
    const int last = member < 0 ? nodes.count() - 1 : first;
    if (r < inside || r >= inside + 2 * across) {
      const bool add = r < inside;
      const int t = add ? r : r - inside - 2 * across;
      for (int k = first; k <= last; ++k) ring_inside(k, t, add, member, out);
      return;
    }
    const int t = r - inside, count = nodes.count();
    const bool add = t < across;
    if (member < 0) {
      for (int k = 0; k < count; ++k) ring_across(k, add ? t : t - across, add, member, out);
    } else {
      ring_across(first, add ? t : t - across, add, member, out);
      if (count > 1)
        ring_across((first + count - 1) % count, add ? t : t - across, add, member, out);
    }
  }
  std::vector<Repeat> distinct() const override {
    std::vector<Repeat> out;
    inside_repeats(0, out);
    if (across > 0) out.push_back({inside, 2 * across});
    inside_repeats(inside + 2 * across, out);
    return out;
  }
  // In each phase of a ring, a member sends all parts but one: inside its node parts of the tensor,
  // across nodes parts of each segment that it owns.
  std::int64_t sent(int member) const override {
    const int k = nodes.node[at(member)], n = nodes.width(k), i = nodes.local[at(member)];
    const auto share_size = [&](int p) { return share(k, p + 1) - share(k, p); };
    std::int64_t out = n > 1 ? 2 * elements - share_size(i) - share_size((i + 1) % n) : 0;
    const int count = nodes.count();
    for (std::size_t s = 0; count > 1 && s + 1 < cuts_.size(); ++s) {
      if (owner(k, cuts_[s]) != member) continue;
      const std::int64_t size = cuts_[s + 1] - cuts_[s];
      const auto part_size = [&](int p) { return part(size, p + 1, count) - part(size, p, count); };
      out += 2 * size - part_size(k) - part_size((k + 1) % count);
    }
    return out;
  }

 private:
  std::int64_t share(int k, int i) const { return part(elements, i, nodes.width(k)); }
  void ring_inside(int k, int t, bool add, int member, std::vector<Transfer>& out) const {
    const int n = nodes.width(k);
    if (t >= n - 1) return;
    auto send = [&](int i) {
      const int p = (i - (add ? t + 1 : t) + 2 * n) % n;
      push(out, nodes.members[at(k)][at(i)], nodes.members[at(k)][at((i + 1) % n)], share(k, p),
           share(k, p + 1), add);
    };
    if (member < 0) {
      for (int i = 0; i < n; ++i) send(i);
    } else {
      send(nodes.local[at(member)]);
      send((nodes.local[at(member)] + n - 1) % n);
    }
  }
  int owner(int k, std::int64_t element) const {
    auto i = static_cast<int>(static_cast<double>(element) * nodes.width(k) /
                              static_cast<double>(elements));
    while (share(k, i + 1) <= element) ++i;
    while (share(k, i) > element) --i;
    return nodes.members[at(k)][at(i)];
  }
  // In node k, each owner sends one of `count` parts of its segment to the owner in the next node.
  void ring_across(int k, int t, bool add, int member, std::vector<Transfer>& out) const {
    const int count = nodes.count(), next = (k + 1) % count;
    const int p = (k - (add ? t + 1 : t) + 2 * count) % count;
    for (std::size_t s = 0; s + 1 < cuts_.size(); ++s) {
      const int from = owner(k, cuts_[s]), to = owner(next, cuts_[s]);
      if (member >= 0 && from != member && to != member) continue;
      const std::int64_t size = cuts_[s + 1] - cuts_[s];
      push(out, from, to, cuts_[s] + part(size, p, count), cuts_[s] + part(size, p + 1, count),
           add);
    }
  }
  std::vector<std::int64_t> cuts_;
};

class Parts : public TwoLevel {  // reduce_scatter, all_gather
 public:
  Parts(program::Move move, std::span<const Id> node_of, std::int64_t elements)
      : TwoLevel(node_of, elements), scatter_(move == program::Move::reduce_scatter) {
    for (int k = 0; k < nodes.count(); ++k) {
      auto& agent_elements = agent_elements_[nodes.width(k)];
      if (!agent_elements.empty()) continue;  // nodes of equal width have equal sums
      agent_elements.assign(at(nodes.width(k)), 0);
      for (int p = 0; p < members(); ++p) agent_elements[at(agent(k, p))] += size(p);
    }
  }
  int rounds() const override { return inside + across; }
  void round(int r, int member, std::vector<Transfer>& out) const override {
    const int count = nodes.count();
    const int first = member < 0 ? 0 : nodes.node[at(member)];
    const bool is_inside = scatter_ ? r < inside : r >= across;
    if (is_inside) {
      const int t = scatter_ ? r : r - across;
      for (int k = first; k <= (member < 0 ? count - 1 : first); ++k)
        ring_inside(k, t, member, out);
      return;
    }
    const int t = scatter_ ? r - inside : r;
    if (member < 0) {
      for (int k = 0; k < count; ++k) ring_across(k, t, member, out);
    } else {
      ring_across(first, t, member, out);
      ring_across((first + count - 1) % count, t, member, out);
    }
  }
  std::vector<Repeat> distinct() const override {
    std::vector<Repeat> out;
    if (scatter_) inside_repeats(0, out);
    if (across > 0) out.push_back({scatter_ ? inside : 0, across});
    if (!scatter_) inside_repeats(across, out);
    return out;
  }
  // Inside its node, a member sends all parts except those of one agent; across nodes, the parts
  // that it is the agent of, except those of one node.
  std::int64_t sent(int member) const override {
    const int k = nodes.node[at(member)], n = nodes.width(k), i = nodes.local[at(member)];
    const std::vector<std::int64_t>& agent_elements = agent_elements_.at(n);
    const int kept = scatter_ ? k : (k + 1) % nodes.count();
    std::int64_t across_kept = 0;
    for (int p : nodes.members[at(kept)])
      if (agent(k, p) == i) across_kept += size(p);
    return elements - agent_elements[at(scatter_ ? i : (i + 1) % n)] + agent_elements[at(i)] -
           across_kept;
  }

 private:
  std::int64_t begin(int p) const { return part(elements, p, members()); }
  std::int64_t size(int p) const { return begin(p + 1) - begin(p); }
  int agent(int k, int p) const {
    return nodes.local[at(p)] * nodes.width(k) / nodes.width(nodes.node[at(p)]);
  }
  // Calls f(p) for every part p whose agent in node k is the member at position `a`.
  template <class F>
  void each_part(int k, int a, F f) const {
    const int w = nodes.width(k);
    for (int other = 0; other < nodes.count(); ++other) {
      const int v = nodes.width(other);
      for (int i = (a * v + w - 1) / w; i < v && i * w / v == a; ++i)
        f(nodes.members[at(other)][at(i)]);
    }
  }
  void ring_inside(int k, int t, int member, std::vector<Transfer>& out) const {
    const int n = nodes.width(k);
    if (t >= n - 1) return;
    auto send = [&](int i) {
      const int a = (i - (scatter_ ? t + 1 : t) + 2 * n) % n;
      each_part(k, a, [&](int p) {
        push(out, nodes.members[at(k)][at(i)], nodes.members[at(k)][at((i + 1) % n)], begin(p),
             begin(p + 1), scatter_);
      });
    };
    if (member < 0) {
      for (int i = 0; i < n; ++i) send(i);
    } else {
      send(nodes.local[at(member)]);
      send((nodes.local[at(member)] + n - 1) % n);
    }
  }
  void ring_across(int k, int t, int member, std::vector<Transfer>& out) const {
    const int count = nodes.count(), next = (k + 1) % count;
    const int home = (k - (scatter_ ? t + 1 : t) + 2 * count) % count;
    for (int p : nodes.members[at(home)]) {
      const int from = nodes.members[at(k)][at(agent(k, p))];
      const int to = nodes.members[at(next)][at(agent(next, p))];
      if (member >= 0 && from != member && to != member) continue;
      push(out, from, to, begin(p), begin(p + 1), scatter_);
    }
  }
  bool scatter_;
  // By width of a node and position in it: the elements of all parts that this agent handles.
  std::map<int, std::vector<std::int64_t>> agent_elements_ = {};
};

// The tree of broadcast and reduce: a chain of leaders, one per node, that starts at the root; and
// below each leader a chain of its node's other members. Returns the parent of each member.
std::vector<int> leader_tree(const Nodes& nodes, int root) {
  std::vector<int> parent(nodes.node.size(), -1);
  const int count = nodes.count(), first = nodes.node[at(root)];
  int leader = -1;
  for (int step = 0; step < count; ++step) {
    const auto& members = nodes.members[at((first + step) % count)];
    const int head = step == 0 ? root : members[0];
    parent[at(head)] = leader;
    int above = head;
    for (int m : members)
      if (m != head) parent[at(m)] = above, above = m;
    leader = head;
  }
  return parent;
}

}  // namespace

std::unique_ptr<const Schedule> hierarchical(program::Move move, std::span<const Id> node_of,
                                             std::int64_t elements, int root) {
  if (move == program::Move::all_reduce) return std::make_unique<AllReduce>(node_of, elements);
  if (move == program::Move::broadcast || move == program::Move::reduce)
    return pipelined_tree(leader_tree(Nodes(node_of), root), elements,
                          move == program::Move::reduce);
  return std::make_unique<Parts>(move, node_of, elements);
}

}  // namespace rehearse::collectives
