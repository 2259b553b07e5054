// Predicts the step of a job, and compares it under other methods, with librehearse.so:
//
//   compare_methods JOB.toml METHODS [KEY=VALUE ...]
//
// prints CSV: step time and the interval that a measured step lies in (seconds), tokens/s, MFU,
// and the memory of the fullest device (bytes). docs/cpp.md says how to build it.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <iomanip>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "study/rehearse.h"

namespace study = rehearse::study;

namespace {

void print(const std::string& label, const study::Result& r) {
  std::int64_t peak = 0;
  for (const study::DeviceMemory& memory : r.memory) peak = std::max(peak, memory.peak);
  std::cout << label << ',' << r.step_s << ',';
  if (r.interval_s) std::cout << r.interval_s->low << ".." << r.interval_s->high;
  std::cout << ',' << r.tokens_per_s << ',' << r.mfu.value_or(0) << ',' << peak << '\n';
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3)
    throw rehearse::InputError("usage: compare_methods JOB.toml METHODS [KEY=VALUE ...]");
  const study::Job job = study::Job::from_file(argv[1], {argv + 3, argv + argc});
  std::cout << std::setprecision(std::numeric_limits<double>::max_digits10)
            << "method,step_s,interval_s,tokens_per_s,mfu,peak_bytes\n";
  print("the job", study::simulate(job));
  for (const study::Compared& row : study::compare(job, argv[2]))
    if (row.result)
      print(row.label, *row.result);
    else
      std::cerr << row.label << " cannot run: " << row.refusal << '\n';
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
