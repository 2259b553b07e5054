// What tests of numerics train: plans of every registered method.
#pragma once
#include <ostream>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/program/program.h"

namespace rehearse::runtime {

/// A plan that trains a model.
struct NumericsCase {
  std::string name = {};
  plan::Plan plan = {};
  std::string model = "gpt-tiny";
};
inline std::ostream& operator<<(std::ostream& out, const NumericsCase& c) { return out << c.name; }

/// Whether a server takes gradients in the order in which they arrive.
bool serves_by_arrival(const program::Program& program);

/// Larger meshes, several techniques at once; and of every method the smallest plan, and one for
/// each setting that the method combines with.
std::vector<NumericsCase> all_cases();

/// The cases with another family's blocks: the smallest plan of these methods (a mesh of each axis,
/// and each way in which gradients are summed), or all other cases.
std::vector<NumericsCase> with_llama(bool few);

/// Gemma 2, which has no tensor parallelism: shards, and pipelines with whole and divided
/// backwards.
std::vector<NumericsCase> with_gemma();

/// A mixture of experts on a mesh of each axis, in shards, recomputed, and on the host.
std::vector<NumericsCase> with_experts();

}  // namespace rehearse::runtime
