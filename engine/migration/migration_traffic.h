// The traffic of a migration: its pieces as messages between ranks, in one order that all ranks
// share, and what each rank does with what it gets. Internal to migration.cpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/migration/migration_pieces.h"

namespace rehearse::migration {

/// Pieces that travel together in a packet; or one large interval, straight from storage to
/// storage.
struct MigrationMessage {
  Id from = none, to = none;
  int ordinal = 0;  // of its pair of ranks
  program::DType wire = program::DType::f32;
  std::int64_t elements = 0;
  bool direct = false;
  std::vector<std::size_t> pieces = {};
};

/// A cast, or a weave, at the rank that gets the pieces.
struct Unpack {
  int turn = -1;  // the last message that it waits for; -1: none
  int order = 0;  // among what is put into the same residual
  std::size_t piece = 0;
  int weave = -1;
};

struct MigrationTraffic {
  PieceMoves moves = {};
  std::vector<MigrationMessage> messages = {};         // in the order of all ranks
  std::vector<int> turn_of = {};                       // by piece: its message; -1: none
  std::vector<std::int64_t> offset_of = {};            // by piece: in its packet
  std::vector<std::vector<std::size_t>> of_rank = {};  // messages that it sends or gets
  std::vector<std::vector<Unpack>> unpacks = {};       // by rank
  std::int64_t sent_bytes = 0, kept_bytes = 0;
};

/// `most`: elements of a packet.
MigrationTraffic traffic_of(PieceMoves moves, Id ranks, std::int64_t most);

}  // namespace rehearse::migration
