// Compares tables of the reference pages in docs/, with rows "| `name` | cell | ... |", with the
// code.
#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/files/config.h"

namespace rehearse::test {

/// The rows whose first cell is a name in backquotes: from the name to the other cells.
inline std::map<std::string, std::vector<std::string>> table_rows(const std::string& file) {
  std::map<std::string, std::vector<std::string>> rows;
  std::ifstream in(file);
  EXPECT_TRUE(in) << file;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("| `")) continue;
    std::vector<std::string> cells;
    std::istringstream parts(line.substr(1));
    for (std::string cell; std::getline(parts, cell, '|');) {
      std::erase(cell, '`');
      const auto first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
      cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
    }
    const std::string name = cells.front();
    cells.erase(cells.begin());
    EXPECT_TRUE(rows.try_emplace(name, cells).second) << file << " lists twice: " << name;
  }
  return rows;
}

/// Expects that the page lists exactly these keys: "| `key` | type | default | meaning |".
inline void expect_documented(const std::string& file, const std::vector<Config::Key>& keys) {
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
