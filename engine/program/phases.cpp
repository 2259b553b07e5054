#include "engine/program/phases.h"

#include <algorithm>

namespace rehearse::program {

int last_phase(const Program& program) {
  int step = 0;
  for (const Role& role : program.roles)
    for (const Op& op : role.ops) step = std::max({step, op.when.from, op.when.until});
  return step;
}

Program with_early_last_phase(Program program) {
  const int left_out = last_phase(program) - 1;
  if (left_out <= 0) return program;
  for (Role& role : program.roles)
    for (Op& op : role.ops) {
      op.when.from = std::max(0, op.when.from - left_out);
      // An op that works in left out steps alone works in step 0.
      if (op.when.until > 0) op.when.until = std::max(1, op.when.until - left_out);
    }
  return program;
}

}  // namespace rehearse::program
