// Hashes and descriptions of models and profiles. A plan and its rehearsal store these hashes, so
// that they are not used for another model or profile. (cluster::Cluster::hash is the cluster's.)
// Each hash is the FNV-1a of a text with all fields that are not derived from others; it is the
// same on every machine. The model's name is left out, because nothing depends on it.
#pragma once
#include <cstdint>
#include <string>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"

namespace rehearse::job {

std::uint64_t hash_of(const model::ModelSpec& model);
/// Hash of the profile as JSON (costs::to_json).
std::uint64_t hash_of(const costs::Profile& profile);

/// One line for people, such as "gpt2-124m: gpt, 12 layers, hidden 768, 12 heads, ..." and "paper:
/// 12 nodes, 24 x RTX 4090, 8 x V100 PCIe 32GB".
std::string describe(const model::ModelSpec& model);
std::string describe(const cluster::Cluster& cluster);

}  // namespace rehearse::job
