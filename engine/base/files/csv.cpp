#include "engine/base/files/csv.h"

#include <csv.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "engine/base/errors.h"
#include "engine/base/files/files.h"

namespace rehearse {
namespace {

/// Collects the fields that libcsv finds.
struct Reader {
  const std::string& file;
  CsvTable table = {};
  std::vector<std::string> row = {};
  int line = 0;                // that is being parsed
  std::string complaint = {};  // of the first wrong row

  void end_row() {
    std::vector<std::string> done = std::move(row);
    row.clear();
    if (!complaint.empty() || (done.size() == 1 && done[0].empty())) return;
    if (table.columns.empty()) {
      table.columns = std::move(done);
      for (std::size_t i = 0; i < table.columns.size(); ++i)
        if (std::find(table.columns.begin(), table.columns.begin() + std::ptrdiff_t(i),
                      table.columns[i]) != table.columns.begin() + std::ptrdiff_t(i))
          complaint =
              fmt::format("{}:{}: two columns are called \"{}\"", file, line, table.columns[i]);
      return;
    }
    if (done.size() != table.columns.size())
      complaint = fmt::format("{}:{}: {} fields, but the header has {}", file, line, done.size(),
                              table.columns.size());
    else
      table.rows.push_back(std::move(done));
  }
};

}  // namespace

std::size_t CsvTable::column(const std::string& name) const {
  return std::size_t(std::find(columns.begin(), columns.end(), name) - columns.begin());
}

CsvTable parse_csv(const std::string& text, const std::string& file) {
  Reader reader{file};
  csv_parser parser;
  csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI | CSV_APPEND_NULL);
  const std::unique_ptr<csv_parser, decltype(&csv_free)> owner(&parser, csv_free);
  const auto field = [](void* data, std::size_t size, void* to) {
    static_cast<Reader*>(to)->row.emplace_back(static_cast<const char*>(data), size);
  };
  const auto line = [](int, void* to) { static_cast<Reader*>(to)->end_row(); };
  bool read = true;
  // Line by line, because libcsv does not say where it is.
  const std::size_t mark = text.starts_with("\xef\xbb\xbf") ? 3 : 0;  // of UTF-8
  for (std::size_t begin = mark; read && begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    ++reader.line;
    read =
        csv_parse(&parser, text.data() + begin, end - begin, field, line, &reader) == end - begin;
    begin = end;
  }
  read = read && csv_fini(&parser, field, line, &reader) == 0;
  if (!reader.complaint.empty()) throw InputError(reader.complaint);
  if (!read)
    throw InputError(
        fmt::format("{}:{}: not CSV: a quotation mark inside a field, or one that is never closed",
                    file, reader.line));
  if (reader.table.columns.empty()) throw InputError(fmt::format("{}: no header line", file));
  return std::move(reader.table);
}

CsvTable load_csv(const std::string& path) { return parse_csv(read_file(path), path); }

}  // namespace rehearse
