// Reads CSV files (RFC 4180) whose first line names the columns. Only csv.cpp includes libcsv.
#pragma once
#include <string>
#include <vector>

namespace rehearse {

struct CsvTable {
  std::vector<std::string> columns = {};
  std::vector<std::vector<std::string>> rows = {};  // each as long as `columns`

  /// Index of a column; columns.size() when there is none.
  std::size_t column(const std::string& name) const;
};

/// Throws InputError (file, line) when the file cannot be read, is not CSV, has no header, names a
/// column twice, or has a row of another length.
CsvTable load_csv(const std::string& path);
CsvTable parse_csv(const std::string& text, const std::string& file);

}  // namespace rehearse
