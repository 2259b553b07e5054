// Columns of text that line up.
#pragma once
#include <string>
#include <vector>

namespace rehearse::cli {

/// One line a row, columns two blanks apart, the first row a header. Columns whose cells below the
/// header all begin with a digit, a sign or "-" stand at the right. A row may be shorter: its last
/// cell then runs on.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// Columns that a text takes on a terminal (UTF-8, no wide characters).
std::size_t width(const std::string& text);

}  // namespace rehearse::cli
