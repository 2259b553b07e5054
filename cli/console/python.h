// Finds the project's private Python interpreter and runs the report script with it.
#pragma once
#include <string>
#include <vector>

namespace rehearse::cli {

/// Path of the interpreter: REHEARSE_PYTHON, or else tools/python, which tools/setup creates. Empty
/// when there is none.
std::string find_python();
/// Like find_python, but throws InputError that says how to get the interpreter when there is none.
/// `flag`: the option that needs Python.
std::string need_python(const std::string& flag);
/// Runs plots/report.py. Throws BackendError with the last line of its output when it fails.
void run_report(const std::string& python, const std::vector<std::string>& arguments);

}  // namespace rehearse::cli
