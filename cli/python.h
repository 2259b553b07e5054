// The project's private Python, for what matplotlib draws.
#pragma once
#include <string>
#include <vector>

namespace rehearse {

/// The interpreter: REHEARSE_PYTHON, else the one that tools/setup made; empty when there is none.
std::string find_python();
/// The same; throws InputError that says how to get one. `flag`: what needs it.
std::string need_python(const std::string& flag);
/// plots/report.py with these arguments. Throws BackendError with what it said when it fails.
void run_report(const std::string& python, const std::vector<std::string>& arguments);

}  // namespace rehearse
