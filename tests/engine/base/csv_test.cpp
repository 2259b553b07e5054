// CSV files: quotes and empty lines as RFC 4180 has them, and the message of every wrong file.
#include "engine/base/files/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/message_of.h"

namespace rehearse {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

CsvTable parsed(const std::string& text) { return parse_csv(text, "rows.csv"); }
std::string error_of(const std::string& text) {
  return test::message_of([&] { parsed(text); });
}

TEST(Csv, TheFirstLineNamesTheColumns) {
  const CsvTable table = parsed("row,seconds\na,1\nb,2\n");
  EXPECT_THAT(table.columns, ElementsAre("row", "seconds"));
  EXPECT_THAT(table.rows, ElementsAre(ElementsAre("a", "1"), ElementsAre("b", "2")));
  EXPECT_EQ(table.column("seconds"), 1U);
  EXPECT_EQ(table.column("second"), 2U);  // none
  // A header alone is a table without rows, and the last line needs no end.
  EXPECT_TRUE(parsed("row,seconds\n").rows.empty());
  EXPECT_THAT(parsed("row,seconds\na,1").rows, ElementsAre(ElementsAre("a", "1")));
}

TEST(Csv, QuotedFieldsHoldCommasQuotesAndLines) {
  const CsvTable table = parsed("row,note\r\n\"a,b\",\"say \"\"x\"\"\"\r\n\"two\nlines\",\"\"\r\n");
  EXPECT_THAT(table.rows,
              ElementsAre(ElementsAre("a,b", "say \"x\""), ElementsAre("two\nlines", "")));
}

TEST(Csv, EmptyLinesAreNoRows) {
  const auto rows = ElementsAre(ElementsAre("1", "2"), ElementsAre("3", ""));
  EXPECT_THAT(parsed("\n\na,b\n\n1,2\n\n\n3,\n\n").rows, rows);
  EXPECT_THAT(parsed("\n\na,b\n\n1,2\n\n\n3,\n\n").columns, ElementsAre("a", "b"));
}

TEST(Csv, AColumnThatIsNamedTwiceIsRefused) {
  EXPECT_EQ(error_of("a,b,a\n1,2,3\n"), "rows.csv:1: two columns are called \"a\"");
  EXPECT_EQ(error_of("a,,\n1,2,3\n"), "rows.csv:1: two columns are called \"\"");
}

TEST(Csv, ARowOfAnotherLengthIsNamedWithItsLine) {
  EXPECT_EQ(error_of("a,b\n1,2\n3\n4,5\n"), "rows.csv:3: 1 fields, but the header has 2");
  EXPECT_EQ(error_of("a,b\n1,2,3\n"), "rows.csv:2: 3 fields, but the header has 2");
  EXPECT_EQ(error_of("a,b\n1,2,3"), "rows.csv:2: 3 fields, but the header has 2");
  // The first of several.
  EXPECT_EQ(error_of("a,b\n1\n1,2,3\n"), "rows.csv:2: 1 fields, but the header has 2");
}

TEST(Csv, LinesAreCountedAsAnEditorCountsThem) {
  EXPECT_EQ(error_of("a,b\n\n\n1\n"), "rows.csv:4: 1 fields, but the header has 2");
  EXPECT_EQ(error_of("\r\na,b\r\n\r\n1\r\n"), "rows.csv:4: 1 fields, but the header has 2");
  EXPECT_EQ(error_of("a,b\n\"x\ny\",2\n1\n"), "rows.csv:4: 1 fields, but the header has 2");
}

TEST(Csv, WhatIsNotCsvIsRefusedWithItsLine) {
  EXPECT_THAT(error_of("a,b\n1,2\nx\"y,3\n"), HasSubstr("rows.csv:3: not CSV: "));
  EXPECT_THAT(error_of("a,b\n\"x\"y,3\n"), HasSubstr("rows.csv:2: not CSV: "));
  EXPECT_THAT(error_of("a,b\n\"never ends,3\n"), HasSubstr("rows.csv:2: not CSV: "));
  EXPECT_EQ(error_of(""), "rows.csv: no header line");
  EXPECT_EQ(error_of("\n\n"), "rows.csv: no header line");
}

TEST(Csv, FilesAreReadAndMissingOnesRefused) {
  const std::string path = testing::TempDir() + "/some.csv";
  std::ofstream(path, std::ios::binary) << "a\n\"1\r\n2\"\n";
  EXPECT_THAT(load_csv(path).rows, ElementsAre(ElementsAre("1\r\n2")));
  EXPECT_EQ(test::message_of([&] { load_csv(path + ".none"); }),
            path + ".none: cannot be read: No such file or directory");
  EXPECT_EQ(test::message_of([] { load_csv(testing::TempDir()); }),
            testing::TempDir() + ": cannot be read: Is a directory");
}

}  // namespace
}  // namespace rehearse
