// Many short lists in one array, for data that is kept for each piece of a storage.
#pragma once
#include <cstddef>
#include <vector>

#include "engine/base/id.h"

namespace rehearse::link {

/// The linked lists of all pieces in one array. Each list keeps the order of insertion.
template <class T>
class Lists {
 public:
  struct List {
    Id first = none, last = none;
    bool empty() const { return first == none; }
  };
  void reserve(std::size_t n) { nodes_.reserve(n); }
  void add(List& list, const T& value) {
    const Id node = static_cast<Id>(nodes_.size());
    nodes_.push_back({value, none});
    (list.empty() ? list.first : nodes_[list.last].next) = node;
    list.last = node;
  }
  const T& first(List list) const { return nodes_[list.first].value; }
  const T& last(List list) const { return nodes_[list.last].value; }
  template <class F>
  void each(List list, F f) const {
    for (Id node = list.first; node != none; node = nodes_[node].next) f(nodes_[node].value);
  }

 private:
  struct Node {
    T value = {};
    Id next = none;
  };
  std::vector<Node> nodes_ = {};
};

}  // namespace rehearse::link
