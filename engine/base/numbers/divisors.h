// Divisors of whole numbers: the possible sizes of meshes, micro-batches and tensor groups.
#pragma once
#include <vector>

namespace rehearse {

/// All divisors of a positive number, ascending.
std::vector<int> divisors(int whole);
/// The divisor of `whole` nearest to `wanted`, of two equally near ones the smaller. Error messages
/// suggest it.
int nearest_divisor(int whole, int wanted);

}  // namespace rehearse
