#include "engine/cluster/routes/torus.h"

#include <utility>

namespace rehearse::cluster {
namespace {

/// How far device i + 1 along a dimension is from device i, in device numbers.
Id stride_of(const std::vector<int>& sizes, std::size_t dimension) {
  Id stride = 1;
  for (std::size_t d = 0; d < dimension; ++d) stride *= static_cast<Id>(sizes[d]);
  return stride;
}

}  // namespace

Id Torus::neighbour(Id device, std::size_t dimension) const {
  const Id stride = stride_of(sizes, dimension), size = static_cast<Id>(sizes[dimension]);
  const Id coordinate = device / stride % size;
  return device - coordinate * stride + (coordinate + 1) % size * stride;
}

Torus joined(std::vector<int> sizes, std::span<const Id> vertex_of,
             const std::function<Id(Id, Id)>& connect) {
  Torus torus{.sizes = std::move(sizes)};
  const std::size_t dimensions = torus.sizes.size();
  torus.next.assign(vertex_of.size() * dimensions, none);
  for (Id a = 0; a < vertex_of.size(); ++a)
    for (std::size_t d = 0; d < dimensions; ++d) {
      const Id b = torus.neighbour(a, d);
      if (a == b) continue;
      const bool second_of_two = torus.sizes[d] == 2 && b < a;  // its cable is there already
      torus.next[a * dimensions + d] =
          second_of_two ? torus.next[b * dimensions + d] ^ 1U : connect(vertex_of[a], vertex_of[b]);
    }
  return torus;
}

void Torus::path(Id a, Id b, std::vector<Id>& links) const {
  links.clear();
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Id stride = stride_of(sizes, d), size = static_cast<Id>(sizes[d]);
    const Id from = a / stride % size, to = b / stride % size;
    const Id ahead = (to + size - from) % size;
    const bool forward = 2 * ahead <= size;
    for (Id step = forward ? ahead : size - ahead; step > 0; --step) {
      const Id coordinate = a / stride % size;
      const Id before = a - coordinate * stride + (coordinate + size - 1) % size * stride;
      links.push_back(forward ? next[a * sizes.size() + d] : next[before * sizes.size() + d] ^ 1U);
      a = forward ? neighbour(a, d) : before;
    }
  }
}

}  // namespace rehearse::cluster
