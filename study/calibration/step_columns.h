// Columns of a table of step times that are no keys of a job: trainers' names of the global batch,
// of the number of ranks and of the tokens of a step.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/base/files/csv.h"
#include "engine/job/job.h"
#include "study/calibration/calibration.h"

namespace rehearse::study {

class StepColumns {
 public:
  /// Throws InputError when the data is no CSV.
  explicit StepColumns(const CalibrationQuestion& question);

  const CsvTable& table() const { return table_; }
  /// The key of a job that the row states in such a column, as an override; empty: none.
  std::vector<std::string> overrides(std::size_t row) const;
  /// Throws InputError that names both numbers when the row states another number of ranks or of
  /// tokens, or another global batch than its job has.
  void check(std::size_t row, const job::Job& job) const;
  /// Says where rows take the place of the job's own batch, and which columns nothing reads.
  std::vector<std::string> notes() const;

 private:
  std::optional<std::size_t> first_of(const std::vector<std::string>& names) const;
  int whole(std::size_t row, std::size_t column) const;

  const CalibrationQuestion& question_;
  CsvTable table_ = {};
  std::optional<std::size_t> batch_ = {}, ranks_ = {}, tokens_ = {};  // columns
};

/// A note on the columns of a table that are neither keys nor among `known`; empty: there is none.
std::string unused_columns(const CsvTable& table, const std::vector<std::string>& known);

}  // namespace rehearse::study
