#include "engine/base/table.h"

#include <algorithm>
#include <cctype>

namespace rehearse {
namespace {

bool numeric(const std::string& cell) {
  return cell.empty() || cell[0] == '-' || cell[0] == '+' ||
         std::isdigit(static_cast<unsigned char>(cell[0])) != 0;
}

}  // namespace

std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  const std::size_t columns = rows.empty() ? 0 : rows.front().size();
  std::vector<std::size_t> widths(columns, 0);
  std::vector<bool> right(columns, true);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      if (c + 1 == rows[r].size() && c + 1 < columns) break;  // may be wider
      widths[c] = std::max(widths[c], width(rows[r][c]));
      if (r > 0 && !numeric(rows[r][c])) right[c] = false;
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::size_t used = width(row[c]);
      const std::string pad(widths[c] > used ? widths[c] - used : 0, ' ');
      const bool runs_on = c + 1 == row.size() && c + 1 < columns;
      if (c > 0) line += "  ";
      line += right[c] && !runs_on ? pad + row[c] : row[c] + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace rehearse
