// Hears what a study of seconds or minutes is doing, to show it to a person.
#pragma once
#include <string>

namespace rehearse::study {

class Progress {
 public:
  virtual ~Progress() = default;
  /// `live`: for a line that each call replaces. `line`: for a log.
  virtual void say(const std::string& live, const std::string& line) = 0;
  void say(const std::string& text) { say(text, text); }
};

}  // namespace rehearse::study
