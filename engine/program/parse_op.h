// Parses the line of one op of a program's text. parse.cpp parses all other lines.
#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <unordered_map>

#include "engine/program/program.h"
#include "engine/program/text_line.h"

namespace rehearse::program {

/// The ids of the names that were declared, in order of declaration.
class Declared {
 public:
  explicit Declared(const char* what) : what_(what) {}
  std::string add(TextLine& line) {
    std::string name = line.name(what_);
    if (!ids_.emplace(name, static_cast<Id>(ids_.size())).second)
      line.fail(fmt::format("the second {} named '{}'", what_, name));
    return name;
  }
  Id find(const TextLine& line, const std::string& name) const {
    const auto it = ids_.find(name);
    if (it == ids_.end()) line.fail(fmt::format("unknown {} '{}'", what_, name));
    return it->second;
  }

 private:
  const char* what_;
  std::unordered_map<std::string, Id> ids_ = {};
};

struct Names {  // of the whole program
  Declared channels{"channel"}, roles{"role"};
};
struct RoleNames {
  Declared lanes{"lane"}, storages{"storage"}, views{"view"};
};

/// "dp,tp" or "g3" (a group by colour). Fails for a name that is no axis of the mesh.
Axes parse_axes(const TextLine& line, const Program& p, std::string_view text);
/// The rest of the line after the op's number: lane, work, refs, waits, shift and when it works.
Op parse_op(TextLine& line, const Program& p, const Names& names, const RoleNames& role);

}  // namespace rehearse::program
