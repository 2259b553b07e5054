// Formats rows of text as a table with aligned columns.
#pragma once
#include <string>
#include <vector>

namespace rehearse {

/// One line per row, columns two blanks apart. The first row is the header. A column is
/// right-aligned when each of its cells below the header is empty or begins with a digit or a sign.
/// A row may have fewer cells than the header; then its last cell may be wider than its column.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// The number of columns that a UTF-8 text without wide characters takes on a terminal.
std::size_t width(const std::string& text);

}  // namespace rehearse
