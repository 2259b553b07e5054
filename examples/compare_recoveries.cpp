// Walks a job over days in which things break, under several recovery policies, with
// librehearse.so:
//
//   compare_recoveries JOB.toml DAYS POLICIES [KEY=VALUE ...]
//
// prints CSV: policy and kind of checkpoint, goodput, interruptions and the seconds of rework.
// docs/cpp.md says how to build it.
#include <exception>
#include <iomanip>
#include <iostream>
#include <limits>
#include <string>

#include "study/rehearse.h"

namespace study = rehearse::study;

int main(int argc, char** argv) try {
  if (argc < 4)
    throw rehearse::InputError("usage: compare_recoveries JOB.toml DAYS POLICIES [KEY=VALUE ...]");
  const study::Job job = study::Job::from_file(argv[1], {argv + 4, argv + argc});
  std::cout << std::setprecision(std::numeric_limits<double>::max_digits10)
            << "row,goodput,interruptions,rework_s\n";
  for (const study::Recovered& row :
       study::compare_recoveries(job, 86400 * std::stod(argv[2]), argv[3]))
    if (row.result)
      std::cout << '"' << row.label << "\"," << row.result->goodput << ','
                << row.result->interruptions << ',' << row.result->lost_s.at("rework") << '\n';
    else
      std::cerr << row.label << " cannot run: " << row.refusal << '\n';
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
