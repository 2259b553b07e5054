// Divisors of sizes: what meshes, micro-batches and tensor groups are chosen from.
#pragma once
#include <vector>

namespace rehearse {

/// Of a positive number, ascending.
std::vector<int> divisors(int whole);
/// The divisor of `whole` nearest to `wanted`: what a user who wrote `wanted` probably can use.
int nearest_divisor(int whole, int wanted);

}  // namespace rehearse
