// Reads what the programs of NVIDIA/nccl-tests print (all_reduce_perf and others). Comment lines
// begin with #. The last of them name the columns, then comes a line for each size:
//
//   #       size         count      type   redop    root     time   algbw   busbw #wrong     time
//   ... #        (B)    (elements)                               (us)  (GB/s)  (GB/s) (us)
//        1048576        262144     float     sum      -1    76.70   13.67   23.92      0    75.90
//        ...
//
// The first time is out of place, the second in place; the first is taken, because it is what
// `rehearse collective` predicts. Lines of logs between them are skipped, and so are labels and
// times that a launcher puts before each line, or before each piece of a line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace rehearse::calibration {

struct NcclTime {
  int line = 0;  // in the file
  std::int64_t bytes = 0;
  program::DType dtype = program::DType::f32;
  double seconds = 0;
};

struct NcclOutput {
  std::string move = {};  // all_reduce; empty: an older version, which does not print it
  int ranks = 0;          // that the file lists; 0: none
  std::vector<NcclTime> times = {};
};

/// Whether `text` has the line that names the columns.
bool is_nccl_output(const std::string& text);
/// Throws InputError (file, line) when a line of a size is malformed, its result was wrong, or
/// there is no such line.
NcclOutput read_nccl_output(const std::string& text, const std::string& file);

}  // namespace rehearse::calibration
