// What a file of measurements looks like, for messages about files of another kind.
#pragma once
#include <cstdint>
#include <string>

namespace rehearse::calibration {

enum class Form : std::uint8_t { nccl_output, json, table, other };

struct FileForm {
  Form form = Form::other;
  std::string what = {};  // "it is ...": "empty", "a table with the columns row and seconds"
};

FileForm form_of(const std::string& text);

}  // namespace rehearse::calibration
