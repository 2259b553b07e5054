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
/// Runs a script of the installation, as in "plots/report.py", and returns what it printed. Throws
/// BackendError with the last line of its output when it fails, and when it takes longer than
/// patience_with_programs.
std::string run_script(const std::string& python, const std::string& script,
                       const std::vector<std::string>& arguments);
/// Runs plots/report.py.
void run_report(const std::string& python, const std::vector<std::string>& arguments);

/// Checks an -o option whose file is JSON (.json), a page (.html) or a picture; empty: no file.
/// Returns the interpreter that draws the picture, or an empty text. Throws InputError.
std::string check_result_file(const std::string& path);
/// Writes the JSON, or the picture that plots/report.py makes of it. `python`: of
/// check_result_file.
void write_result_file(const std::string& path, const std::string& json, const std::string& python);

}  // namespace rehearse::cli
