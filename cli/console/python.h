// The project's private Python, for the report.
#pragma once
#include <string>
#include <vector>

namespace rehearse::cli {

/// The interpreter: REHEARSE_PYTHON, else tools/python where tools/setup made it; empty when there
/// is none.
std::string find_python();
/// The same; throws InputError that says how to get one. `flag`: what needs it.
std::string need_python(const std::string& flag);
/// plots/report.py with these arguments. Throws BackendError with what it said when it fails.
void run_report(const std::string& python, const std::vector<std::string>& arguments);

}  // namespace rehearse::cli
