// Migration: moves the training state from one program's layout to another's on the same ranks,
// when a run changes its plan: the re-placement after warm-up (Sun 2026, section 3.1: "re-evaluates
// placement only once, after warm-up") and every later change of plan. It runs at a step boundary,
// when no transfer or op is in flight.
//
// A migration is a program that runs for one step, so it is linked, costed, simulated and executed
// like any other program. Each process has its own role. The role's storages are the states of both
// programs ("old.X", "new.X"). A process copies what it already has and receives the rest from the
// nearest rank that has it:
//
//     sending rank                        receiving rank
//     old.W --pack--> packet --send--> recv --> packet --unpack--> new.W   several small pieces
//     old.E -----------------send--> recv -----------------------> new.E   one interval >= 1 MiB
//                                               old.B --unpack--> new.B    a piece that it has
//
//   - Parameters, master weights and moments are copied. Weights of another data type are converted
//     from the master weights if the old plan has any, else from its weights.
//   - Residuals of sparse exchanges are summands: only their sum over the data-parallel ranks has
//     to stay the same. Each old residual is added to exactly one new one, the one whose ranks
//     already hold the largest part of it.
//   - The loss scale is copied. State that belongs to one rank alone (counters of a selector) stays
//     on that rank if the new plan has a storage of the same name and size there.
//   - The data position is the step's number. It does not move: both plans read the same batch.
//
// States in host memory (an optimizer that is offloaded) stay there. A piece from or to host memory
// passes an interval of the device; one that stays on its host as it is, is copied within it.
//
// Pieces for the same rank share packets, so that small tensors do not cost one latency each. A
// tensor-parallel part of a matrix is a piece of every row. `cast` with a stride extracts such
// pieces or assembles rows from them.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/units.h"
#include "engine/cluster/cluster.h"
#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::migration {

/// Which state a storage of the migration program is: version `age` (counted from the next step: 1
/// is the newest) of storage `storage` in the old or new program, in the role that the process
/// plays there. Packets and other values are no state: `storage` is none.
struct MigratedState {
  bool old = false;
  Id storage = none;
  int age = 1;
};

struct Migration {
  program::Program program = {};
  std::vector<std::vector<MigratedState>> states = {};  // [process][storage of its role]
  std::int64_t sent_bytes = 0;                          // bytes sent between ranks, in total
  std::int64_t kept_bytes = 0;                          // bytes copied within ranks, in total
};

struct MigrationOptions {
  /// Distance between two ranks of the migration: of the ranks that hold a piece, the nearest sends
  /// it. Null: all are equally far.
  std::function<double(Id from, Id to)> distance = {};
  /// By process: the rank that it plays in the old program (`played`) and in the new one (`plays`);
  /// empty: the process's own number. Needed when the plans put ranks on different devices (see
  /// `players`).
  std::vector<Id> played = {}, plays = {};
  Bytes packet = Bytes(25e6);  // largest packet between two ranks
};

/// Throws InputError when the world sizes differ, when the new plan needs state that the old one
/// does not have (another optimizer), or when the new plan has no place for a residual. Throws
/// ProgramError for programs with free-running roles, because they have no common step boundary.
Migration migrate(const link::LinkedProgram& from, const link::LinkedProgram& to,
                  const model::ModelSpec& model, const MigrationOptions& options = {});

/// For MigrationOptions::distance: seconds to send 1 MB between two ranks. `cluster` must outlive
/// the result.
std::function<double(Id, Id)> distance_on(const cluster::Cluster& cluster,
                                          std::vector<Id> rank_to_device);
/// By old rank: the new rank on the same device, so that no process has to move to another device.
/// Throws InputError when the new plan uses other devices.
std::vector<Id> players(const std::vector<Id>& old_devices, const std::vector<Id>& new_devices);

}  // namespace rehearse::migration
