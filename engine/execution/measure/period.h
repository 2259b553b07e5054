// Finds when the steps of a run without randomness begin to repeat. Such a run is a deterministic
// system, and after a transient its steps have a period of P steps: every op of step s starts and
// ends c seconds after the same op of step s - P. P may be more than 1 (two weight versions, lanes
// that wait for older steps). From then on, all later steps are known without running them.
//
//   step      0      1       2       3       4        each step is one row of ends, by op and rank
//            |--|   |----|  |---|   |---|   |---|     steps 2 and 3 equal the step before them,
//           transient          P = 1                  c seconds later: the period is found
//
// Two steps are equal when every lane of every rank ends its ops c seconds later, within 1e-9 of a
// step. A lane is compared by one number, a weighted mean of the ends of its ops, with a weight of
// its own for each op.
//
// Why equal steps stay equal: the next steps depend only on the ops that are under way at a moment
// t after which no op of an older step runs. Their ends, and all transfers that share links with
// them until t, must be equal to those one period before. `PeriodFinder` asks for as many equal
// steps as this takes: one where no step begins before the last one ends, two where successive
// steps overlap.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "engine/execution/dry_run/fold.h"
#include "engine/link/link.h"

namespace rehearse::execution {

struct Period {
  int steps = 0;       // P
  double seconds = 0;  // c: how much later every op is, one period later
};

class PeriodFinder {
 public:
  /// The program must have no free-running roles: their steps have numbers of their own. `fold`:
  /// the places of the records are its classes; null: those of the roles.
  explicit PeriodFinder(const link::OrderedProgram& linked, const Fold* fold = nullptr);

  /// As TraceSink::record. Steps may overlap, but a run more than `ahead` steps ahead of the
  /// oldest unfinished step ends the search.
  void record(Id role, Id op, int step, Id first_place, std::span<const double> starts,
              std::span<const double> ends);
  /// All ops of steps 0 to `step` are recorded, and the last of them ended at `end` (seconds).
  /// To be called once for each step, in order. Returns the shortest period that steps up to
  /// `step` prove; nullopt: none yet.
  std::optional<Period> complete(int step, double end);

 private:
  static constexpr int longest = 8, ahead = 4;  // steps

  struct Op {
    double weight = 0;
    std::size_t first = 0;   // index of its lane's first place in a step's ends
    bool may_begin = false;  // may be the first op of its step on its lane
    bool issued = false;     // of a lane that only issues (see `issuer_seconds`)
    bool closes = false;     // the last op of an issuing lane
  };
  std::vector<double>& ends_of(int step);
  bool equal(int step, int period, double later) const;
  bool proven(int step, int period) const;
  bool issuers_keep_up(const Period& period) const;

  std::vector<std::vector<Op>> ops_ = {};         // [role][op]
  std::vector<std::vector<double>> ends_ = {};    // [step % (longest + ahead)][lane and place]
  std::vector<std::vector<double>> issued_ = {};  // [step 0 or 1][place]: ends of issuing lanes
  std::vector<double> step_end_ = {};             // by step
  std::vector<double> first_start_ = {};          // by step: of its first op
  std::vector<int> run_ = {};       // [period]: number of latest steps that equal older ones
  std::vector<double> later_ = {};  // [period]: by how many seconds
  int changes_until_ = 0;           // from this step on, all steps have the same ops
  int repetition_ = 1;              // the steps after which the same ops work again
  int oldest_dependence_ = 0;       // an op depends on at most so many steps before its own
  bool lost_ = false;
};

}  // namespace rehearse::execution
