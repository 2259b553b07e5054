// Compares tables of the reference pages in docs/, with rows "| `name` | cell | ... |", with the
// code. To take over what the code says: REHEARSE_ACCEPT=1.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/files/config.h"

namespace rehearse::test {

/// The cells of a row whose first cell is a name in backquotes; empty for other lines.
inline std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  if (!line.starts_with("| `")) return cells;
  std::istringstream parts(line.substr(1));
  for (std::string cell; std::getline(parts, cell, '|');) {
    const auto first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
  }
  return cells;
}

inline std::string without_quotes(std::string cell) {
  std::erase(cell, '`');
  return cell;
}

inline std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  EXPECT_TRUE(in) << file;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Those rows: from the name to the other cells.
inline std::map<std::string, std::vector<std::string>> table_rows(const std::string& file) {
  std::map<std::string, std::vector<std::string>> rows;
  for (const std::string& line : lines_of(file)) {
    std::vector<std::string> cells = cells_of(line);
    if (cells.empty()) continue;
    for (std::string& cell : cells) cell = without_quotes(cell);
    const std::string name = cells.front();
    cells.erase(cells.begin());
    EXPECT_TRUE(rows.try_emplace(name, cells).second) << file << " lists twice: " << name;
  }
  return rows;
}

/// Writes the types and defaults of these keys into the page, and a row after that of the key
/// before it for each key that has none. Rows of other keys go. A person writes the meanings, and
/// the defaults that depend on other keys.
inline void write_keys(const std::string& file, const std::vector<Config::Key>& keys) {
  const auto row = [](const Config::Key& key, const std::string& fallback,
                      const std::string& meaning) {
    const std::string said = key.fallback.empty() ? fallback : "`" + key.fallback + "`";
    return "| `" + key.path + "` | " + key.type + " | " + said + " | " + meaning + " |";
  };
  std::vector<std::string> lines = lines_of(file);
  const auto line_of = [&](const std::string& path) {
    return std::ranges::find_if(lines, [&](const std::string& line) {
      const std::vector<std::string> cells = cells_of(line);
      return cells.size() == 4 && without_quotes(cells[0]) == path;
    });
  };
  std::erase_if(lines, [&](const std::string& line) {
    const std::vector<std::string> cells = cells_of(line);
    return cells.size() == 4 &&
           std::ranges::find(keys, without_quotes(cells[0]), &Config::Key::path) == keys.end();
  });
  for (std::size_t k = 0; k < keys.size(); ++k)
    if (const auto line = line_of(keys[k].path); line != lines.end())
      *line = row(keys[k], cells_of(*line)[2], cells_of(*line)[3]);
    else if (const auto earlier = k == 0 ? lines.end() : line_of(keys[k - 1].path);
             earlier != lines.end())
      lines.insert(earlier + 1, row(keys[k], "", ""));
  std::ofstream out(file);
  for (const std::string& line : lines) out << line << "\n";
}

/// Expects that the page lists exactly these keys: "| `key` | type | default | meaning |".
inline void expect_documented(const std::string& file, const std::vector<Config::Key>& keys) {
  if (std::getenv("REHEARSE_ACCEPT")) write_keys(file, keys);
  std::map<std::string, std::vector<std::string>> rows = table_rows(file);
  for (const Config::Key& key : keys) {
    ASSERT_TRUE(rows.contains(key.path)) << file << " lacks " << key.path;
    const std::vector<std::string>& cells = rows[key.path];
    ASSERT_EQ(cells.size(), 3U) << key.path;
    EXPECT_EQ(cells[0], key.type) << key.path;
    if (key.fallback.empty()) {
      EXPECT_FALSE(cells[1].empty()) << key.path;
    } else {
      EXPECT_EQ(cells[1], key.fallback) << key.path;
    }
    EXPECT_FALSE(cells[2].empty()) << key.path;
    rows.erase(key.path);
  }
  for (const auto& [path, cells] : rows) {
    if (cells.size() == 3) ADD_FAILURE() << file << " lists " << path << ", which is no key";
  }
}

}  // namespace rehearse::test
