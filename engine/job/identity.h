// Canonical hashes: what a plan and its rehearsal were made for, so that neither is used for
// anything else. FNV-1a of a text that holds everything that is not derived, the same on every
// machine; names that nothing depends on are left out.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/cluster/cluster.h"
#include "engine/costs/profile.h"
#include "engine/model/model.h"

namespace rehearse::job {

std::uint64_t fnv1a(std::string_view text);
std::uint64_t hash_of(const model::ModelSpec& model);
/// Of the file's text in its canonical form.
std::uint64_t hash_of(const costs::Profile& profile);
/// As they are written in files: 16 hexadecimal digits.
std::string hash_text(std::uint64_t hash);

/// For people, and for messages about what differs: "gpt2-124m: 12 layers, hidden 768, ...",
/// "paper: 12 nodes, 24 x RTX 4090, 8 x V100 PCIe 32GB".
std::string describe(const model::ModelSpec& model);
std::string describe(const cluster::Cluster& cluster);

}  // namespace rehearse::job
