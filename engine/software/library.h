// The communication library of a software: what it adds to the times of the network, and how it
// runs a collective. Files: software/libraries/*.toml, docs/software.md.
#pragma once
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/base/units.h"
#include "engine/program/program.h"

namespace rehearse::software {

/// How long an algorithm takes under a protocol, apart from the bytes.
struct ProtocolTimes {
  Seconds base = {};               // before the first hop
  Seconds nvlink = {}, pcie = {};  // each hop in a node, with the latency of its links
  Seconds network = {};            // each hop between nodes, beyond the latency of its links
  double efficiency = 1;           // payload / bytes that occupy the links
  bool operator==(const ProtocolTimes&) const = default;
};

/// One algorithm under one of the library's protocols. NCCL's are LL (a flag beside every word),
/// LL128 (a flag in every 128 bytes, over NVLink) and Simple (whole pieces, then a flag).
struct Protocol {
  program::Algorithm algorithm = program::Algorithm::ring;
  std::string name = {};
  bool nvlink_only = false;      // only for groups whose members in a node have NVLink
  ProtocolTimes measured = {};   // what it takes
  ProtocolTimes estimated = {};  // what the library believes; it takes the least of these
  bool operator==(const Protocol&) const = default;
};

struct Library {
  std::string name = "rounds";
  bool on_device = false;  // its kernels take multiprocessors from the passes beside them
  /// Of sends, and of collectives whose rounds run one after the other.
  Seconds launch = {};   // from the last rank's start of an op to its first transfer
  Seconds in_node = {};  // each transfer between devices of a node, before its bytes flow
  Seconds across = {};   // each transfer between nodes
  /// Of a ring all-reduce, beyond its 2 (n - 1) steps: the step that both stores a sum and passes
  /// it on, and the last copy, in steps.
  double copies = 0;
  std::vector<Protocol> protocols = {};  // none: collectives run in rounds

  bool operator==(const Library&) const = default;
  bool has(program::Algorithm algorithm) const;
  /// False where switches would have to add and the library cannot ask them to: nvls needs a
  /// protocol of it, and so does in_network where the library has protocols at all. A library in
  /// rounds uses in_network as it is.
  bool runs_sums_of(program::Algorithm algorithm) const;
};

/// Reads a library by name (nccl-2.10: software/libraries/nccl-2.10.toml) or path; "rounds" is the
/// library without protocols. Throws InputError.
Library load_library(const std::string& name_or_path);
/// All libraries that load_library knows by name.
std::vector<std::string> known_libraries();
/// The text of everything that changes a time, for hashes.
std::string text_of(const Library& library);
/// Every key of a library file, for tests of docs/software.md.
std::vector<Config::Key> library_keys();

}  // namespace rehearse::software
