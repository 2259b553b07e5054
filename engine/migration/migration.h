// From the state of one program to that of another on the same ranks, at a step boundary at which
// nothing is under way: the re-placement after warm-up (Sun 2026, section 3.1: "re-evaluates
// placement only once, after warm-up") and every later change of plan. The migration is a program
// itself, run for one step: each process is a role with the states of both programs as storages
// ("old.X", "new.X"), copies what it already has, and gets the rest from the nearest rank that has
// it. So it is linked, costed, simulated and really run like any other program.
//
//   - Parameters, masters and moments are copied; 16-bit weights come from the master where there
//     is one, and a plan of another precision gets them rounded.
//   - Residuals of sparse exchanges are summands: what all data-parallel ranks still owe is what
//     counts. Each old residual is added into exactly one new one, where most of it lies already.
//   - The loss scale is copied; what a rank keeps for itself alone (counters of a selector) stays
//     where a storage of that name and size stands on the same rank.
//   - The data position is the step's number and needs no move: both plans take the same batch.
//
// Between two ranks pieces travel packed into packets, so that small tensors cost no latency each;
// a large interval goes straight from storage to storage. A tensor-parallel part of a matrix is
// every row's piece: `cast` with a stride takes such pieces out, or weaves them together.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/units.h"
#include "engine/cluster/cluster.h"
#include "engine/link/link.h"
#include "engine/model/model.h"

namespace rehearse::migration {

/// What a storage of the migration program is: version `age` (as the next step will see it) of a
/// state of the old or the new program, in the role that the rank plays there. Packets are nothing:
/// `storage` none.
struct MigratedState {
  bool old = false;
  Id storage = none;
  int age = 1;
};

struct Migration {
  program::Program program = {};
  std::vector<std::vector<MigratedState>> states = {};  // by process and storage of its role
  std::int64_t sent_bytes = 0;                          // between ranks, all together
  std::int64_t kept_bytes = 0;                          // copied within ranks
};

struct MigrationOptions {
  /// Preference among processes that have a piece: the smaller, the nearer. Null: all equally far.
  std::function<double(Id from, Id to)> distance = {};
  /// The ranks of the old and of the new program that each process plays; empty: its own number.
  /// Plans that put ranks on other devices need it (see `players`).
  std::vector<Id> played = {}, plays = {};
  Bytes packet = Bytes(25e6);
};

/// Throws InputError when the new plan needs what the old one does not have (another optimizer) or
/// would lose what is owed (residuals without a place), ProgramError for programs with roles that
/// have no steps in common (free-running workers).
Migration migrate(const link::LinkedProgram& from, const link::LinkedProgram& to,
                  const model::ModelSpec& model, const MigrationOptions& options = {});

/// Seconds of a megabyte between ranks that stand on these devices, for MigrationOptions::distance.
std::function<double(Id, Id)> distance_on(const cluster::Cluster& cluster,
                                          std::vector<Id> rank_to_device);
/// The rank of the new plan that the process of each old rank plays so that no process moves: the
/// one on its device. Throws InputError when the plans stand on different devices.
std::vector<Id> players(const std::vector<Id>& old_devices, const std::vector<Id>& new_devices);

}  // namespace rehearse::migration
