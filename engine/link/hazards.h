// Hazards: pairs of ops of one role that touch the same memory and therefore need an order. The
// pass infer_waits adds waits for them, and the linker proves that each of them is covered.
//
// The race rule, for a storage with V = 2 versions that is read with age 1:
//
//   step        t-1                t                  t+1
//   writer      slot 1 ----------> slot 0 ----------> slot 1
//                    \                                  ^
//                     \ RAW, lag 1                     / WAR, lag 1
//   reader             `---------> slot 1 ------------'
//
//   RAW  read of step t starts after the write of step t - age has ended          lag = age
//   WAR  write of step t starts after the read of step t - (V - age) has ended    lag = V - age
//   WAW  write of step t starts after the write of step t - V has ended           lag = V
//
// A path of waits and lane order from `on` to `op` covers a hazard if its lags sum to at most the
// hazard's lag.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::link {

enum class HazardKind : std::uint8_t { read_after_write, write_after_read, write_after_write };
/// The instance of `op` in step t must start after the instance of `on` in step t - lag has ended.
/// `view`: one of the views concerned, for messages.
struct Hazard {
  Id op = none, on = none;
  int lag = 0;
  HazardKind kind = HazardKind::read_after_write;
  Id view = none;
};
struct Hazards {
  std::vector<Hazard> list = {};  // grouped by op, without those that lane order already covers
  int max_lag = 0;                // largest lag of all hazards, also of those not in `list`
  // [instance]: the ops of a step that are the first to write some part of the instance, and the
  // ops that may be the last to use some part. Both in step order.
  std::vector<std::vector<Id>> first_writers = {}, last_users = {};
  std::vector<std::size_t> instance_base = {};  // [storage]: its first instance; add the index
};

/// Throws ProgramError for a read before any write or in a step without it, for a version that is
/// overwritten before it is read, for an operand whose layout is not the one last written, and for
/// data that is written and never read.
Hazards hazards_of(const program::Program& program, const program::Role& role);
/// Only `Hazards::list`, in less time. Throws the same errors.
std::vector<Hazard> hazard_list(const program::Program& program, const program::Role& role);

/// Step order: the ops of a role as they serve one step, by shift, then by place in the list.
std::vector<Id> step_order(const program::Role& role);

}  // namespace rehearse::link
