// Partitions: the parts of gradients that servers sum one by one (BytePS: Jiang et al., OSDI 2020,
// section 4). Each segment's gradients lie in one bucket, which is cut into partitions of equal
// size; the last one holds the rest. Numbers count them in the order in which backward completes
// their buckets:
//
//   bucket      head           mlp 1      attention 1    ...   embedding
//   partition   | 0 | 1 | 2 |  | 3 | 4 |  | 5 |                | ... | n - 1 |
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/methods/lowering/exchange/buckets.h"

namespace rehearse::methods {

struct Partition {
  std::string name = {};  // of the bucket; with ".p1" if the bucket has several
  Id bucket = none;
  std::int64_t begin = 0, end = 0;  // in elements of the bucket
  Id layer = none;                  // the first segment whose forward reads its weights
  int server = -1;                  // that sums it; -1: there are no servers
};

/// The partitions of `buckets`, of at most plan.exchange.bucket bytes, rounded up so that the ranks
/// of a machine get equal parts of each. Each goes to the server that has the fewest bytes for its
/// share (server_share). Throws Refused when there are fewer partitions than servers.
std::vector<Partition> partitions_of(const plan::Plan& plan, const std::vector<Bucket>& buckets);

/// The same for the plan's buckets.
std::vector<Partition> partitions_of(const plan::Plan& plan, const model::ModelSpec& model);

/// The workers of a machine: method.local_ranks; 1 unless stated.
int local_ranks(const plan::Plan& plan);
/// The machines whose workers a server sums: dp / local_ranks.
int machines_of(const plan::Plan& plan);

/// The part of all bytes that a server sums, relative to the others. Equal parts, but of mixed
/// servers, with n machines and k servers on nodes of their own, n - k for a colocated one and
/// 2 (n - 1) for one of the k (Jiang et al. 2020, section 3.2): then all NICs are equally busy.
double server_share(const plan::Plan& plan, int server);

}  // namespace rehearse::methods
