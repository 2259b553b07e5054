// The traffic of a migration: packs the pieces into messages between ranks, orders the messages,
// and lists what each rank does with the pieces that it receives. Internal to engine/migration.
//
// All ranks use the same order of messages, so that no wait can form a cycle. The order is by the
// message's number within its pair of ranks, then by (to - from) mod n, so that each rank sends to
// one rank and receives from one rank at a time. With n = 3 ranks:
//
//     number 0:  0>1 1>2 2>0   then   0>2 1>0 2>1
//     number 1:  0>1 1>2 2>0   then   0>2 1>0 2>1    ...
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/migration/migration_pieces.h"

namespace rehearse::migration {

/// A packet with several pieces, or one large interval that goes directly from storage to storage
/// (`without_packet`).
struct MigrationMessage {
  Id from = none, to = none;
  int ordinal = 0;                            // its number among the messages of this pair of ranks
  program::DType wire = program::DType::f32;  // data type on the network
  std::int64_t elements = 0;
  bool without_packet = false;
  std::vector<std::size_t> pieces = {};  // into PieceMoves::copies
};

/// A cast at the receiving rank: of one piece, or of the pieces of one RowAssembly.
struct Unpack {
  int turn = -1;          // the last message that it waits for, in the common order; -1: none
  int order = 0;          // PieceCopy::turn: its place among the casts into one residual
  std::size_t piece = 0;  // into PieceMoves::copies; unused with a RowAssembly
  int assembly = -1;      // into PieceMoves::assemblies; -1: a single piece
};

struct MigrationTraffic {
  PieceMoves moves = {};
  std::vector<MigrationMessage> messages = {};         // in the common order
  std::vector<int> turn_of = {};                       // by piece: its message; -1: not sent
  std::vector<std::int64_t> offset_of = {};            // by piece: its first element in the packet
  std::vector<std::vector<std::size_t>> of_rank = {};  // by rank: messages it sends or gets
  std::vector<std::vector<Unpack>> unpacks = {};       // by rank, in the order of execution
  std::int64_t sent_bytes = 0, kept_bytes = 0;         // as in Migration
};

/// `most`: largest number of elements in a packet.
MigrationTraffic traffic_of(PieceMoves moves, Id ranks, std::int64_t most);

}  // namespace rehearse::migration
