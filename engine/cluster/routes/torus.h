// Devices that are joined to a torus by cables (Google's TPUs, Jouppi et al., ISCA 2023). Each
// device is also a router. Along each dimension of three or more devices, the last one has a cable
// to the first. Two by four:
//
//   +-- 1 --- 3 --- 5 --- 7 --+     y: a ring of four (the ends meet)
//       |     |     |     |         x: two devices, one cable
//   +-- 0 --- 2 --- 4 --- 6 --+
//
// Transfers travel along the first dimension, then along the next (dimension order), each time the
// shorter way around. Of two equally long ways they take that of rising coordinates. Private to
// Cluster.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "engine/base/id.h"

namespace rehearse::cluster {

struct Torus {
  std::vector<int> sizes = {};
  /// [device * dimensions + dimension]: the link to the neighbour with the next coordinate; none
  /// where the dimension has one device. The link to the one before is the other direction of that
  /// neighbour's link.
  std::vector<Id> next = {};

  /// Sets `links` to the directed links from device a to device b.
  void path(Id a, Id b, std::vector<Id>& links) const;
  /// The device with the next coordinate along a dimension.
  Id neighbour(Id device, std::size_t dimension) const;
};

/// A torus whose cables `connect` lays: from one vertex to another; returns the cable's first link.
/// vertex_of: [device].
Torus joined(std::vector<int> sizes, std::span<const Id> vertex_of,
             const std::function<Id(Id, Id)>& connect);

}  // namespace rehearse::cluster
