// One collective on the devices of a cluster: its time by size, algorithm and protocol.
// `rehearse collective` prints it, and `rehearse validate` compares it with measurements.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/cluster/cluster.h"
#include "engine/program/program.h"

namespace rehearse::study {

/// Of one group. Where ranks are not stated and the cluster has more devices, the first so many.
inline constexpr std::size_t most_collective_ranks = 4096;

struct CollectiveQuestion {
  cluster::Cluster cluster = {};  // with the software's communication library
  std::string software = {};
  program::Move move = program::Move::all_reduce;
  program::DType dtype = program::DType::f32;
  program::Algorithm algorithm = program::Algorithm::automatic;
  std::string protocol = {};     // empty: the library's choice
  std::vector<Id> devices = {};  // of the ranks, in order
  std::int64_t bytes = 0;        // of the whole tensor
};

/// The sections [collective] and [software] of a file. Throws InputError.
CollectiveQuestion read_collective(const Config& file);

struct CollectiveWay {
  program::Algorithm algorithm = program::Algorithm::ring;
  std::string protocol = {};  // empty: the library has none, the collective runs in rounds
  double seconds = 0;
};

struct CollectiveAnswer {
  std::int64_t bytes = 0, elements = 0;
  CollectiveWay chosen = {};
  std::vector<CollectiveWay> ways = {};  // all that serve the question, the chosen one among them
  /// As nccl-tests defines them, in bytes per second: bytes / seconds, and that times the share of
  /// the bytes that crosses each link (2 (n - 1) / n for all_reduce; 1 for broadcast, reduce and
  /// rotate; (n - 1) / n for the others).
  double algorithm_bandwidth = 0, bus_bandwidth = 0;
};

/// The time of the question's collective when nothing else uses the cluster. Throws InputError when
/// no way serves the question.
CollectiveAnswer predict_collective(const CollectiveQuestion& question);

nlohmann::ordered_json to_json(const CollectiveAnswer& answer);

}  // namespace rehearse::study
