// What a run tells its user: a live line on a terminal, plain lines elsewhere, and a line of JSON a
// step in a file. Rank 0 collects the other ranks' reports; a step is told when all have come.
#pragma once
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/link/link.h"
#include "runtime/control/control.h"
#include "runtime/data/data.h"
#include "runtime/execution/executor.h"
#include "runtime/training/train.h"

namespace rehearse::runtime {

class Progress {
 public:
  Progress(const job::Job& job, const link::LinkedProgram& linked, const Data& data,
           Control& control, bool quiet);

  /// From here on also tells FOLDER/metrics.jsonl: a line a step, validation and change of plan,
  /// each with the number of steps done. Throws InputError when it cannot be written.
  void open(const std::string& folder);
  /// Before a run of steps [first, limit).
  void begin(std::int64_t first, std::int64_t limit) {
    limit_ = limit;
    if (first_ < 0) first_ = first;
  }
  /// After a step of this rank.
  void step(std::int64_t step, const StepLoss& loss, bool counts);
  /// Rank 0: waits for the reports of all steps before `end`.
  void drain(std::int64_t end);
  void validation(std::int64_t step, double loss, double seconds);
  void saved(std::int64_t step, const std::string& path, double seconds);

  void replaced(const Replacement& replacement);
  /// Rank 0: seconds of steps since `step`, as far as they are known.
  std::vector<double> times_since(std::int64_t step) const;

  /// Losses, norms and times of the steps so far into the summary.
  void summarise(TrainSummary& summary) const;
  /// One line that sums the run up.
  void finish(const TrainSummary& summary);

 private:
  struct Told {
    double sum = 0, square_norm = -1;
    int reports = 0;
  };
  void collect();
  void tell(std::int64_t step, const Told& told);
  void line(const std::string& text, bool keep);
  double now() const;

  const job::Job& job_;
  const Data& data_;
  Control& control_;
  bool leader_, terminal_, quiet_;
  /// Reports that make a step: one of each rank; or, where ranks count steps of their own, as many
  /// as there are such ranks, in the order in which they come.
  int reports_a_step_ = 0;
  bool by_arrival_ = false, silent_ = false;
  std::int64_t arrived_ = 0, limit_ = 0;
  bool live_ = false;  // a line without its end stands on the terminal
  double peak_flops_ = 0;
  std::string no_mfu_ = {}, doubt_ = {};  // why there is no MFU; what to print behind it
  std::ofstream metrics_ = {};
  std::map<std::int64_t, Told> open_ = {};
  std::map<std::int64_t, double> ended_ = {};  // when this rank ended a step
  std::int64_t first_ = -1;
  std::vector<double> losses_ = {}, norms_ = {}, times_ = {};
  std::vector<std::int64_t> timed_ = {};  // the steps that times_ are of
  double began_ = 0;
};

}  // namespace rehearse::runtime
