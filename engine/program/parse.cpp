// Parses the text that text.cpp prints. Every error quotes its line. The text is untrusted input:
// counts and ranges are checked against the world and the mesh before anything of that size is
// allocated. So time and memory are proportional to the text and the world size.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/program/parse_op.h"
#include "engine/program/program.h"
#include "engine/program/program_tables.h"
#include "engine/program/rounds.h"
#include "engine/program/text_line.h"
#include "engine/program/text_version.h"

namespace rehearse::program {
namespace {

/// The most colours of all channels together. A few characters of text can give each rank a colour.
constexpr std::size_t most_colours = std::size_t{4} * most_ranks;

/// Parses "0-3,8,-" into at most `most` ids; "-" is none.
std::vector<Id> parse_ids(const TextLine& line, std::string_view text, std::size_t most) {
  std::vector<Id> ids;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    Id first = none, last = none;
    if (part != "-") {
      const auto dash = part.find('-');
      first = line.number<Id>(part.substr(0, dash), 0, none - 1);
      last = dash == part.npos ? first : line.number<Id>(part.substr(dash + 1), first, none - 1);
    }
    if (last - first >= most - ids.size())
      line.fail(fmt::format("'{}' makes more than {}, one for each rank of the world", part, most));
    for (Id i = first; i <= last && i >= first; ++i) ids.push_back(i);
  }
  return ids;
}

class Reader {
 public:
  void read(TextLine& line) {
    const std::string word = line.take();
    if (!headed_)
      head(line, word);
    else if (role_ != nullptr)
      in_role(line, word);
    else
      outside(line, word);
    line.end();
  }
  Program take() {
    if (!headed_) throw ProgramError("program text is empty");
    if (role_ != nullptr)
      throw ProgramError(fmt::format("program text: role {} has no 'end'", role_->name));
    if (p_.method.empty()) throw ProgramError("program text: there is no line 'method NAME'");
    if (p_.world_size == 0) throw ProgramError("program text: there is no line 'world RANKS'");
    return std::move(p_);
  }

 private:
  void head(TextLine& line, const std::string& word) {
    if (word != "rehearse-program")
      line.fail("not a program: the first line is 'rehearse-program 1'");
    if (const int v = line.number<int>(line.take()); v != text_version)
      line.fail(fmt::format("version {} is unknown; this build reads version {}", v, text_version));
    headed_ = true;
  }

  void outside(TextLine& line, const std::string& word) {
    if (word == "method")
      p_.method = line.take();
    else if (word == "mesh")
      mesh(line);
    else if (word == "world")
      world(line);
    else if (word == "precision")
      precision(line);
    else if (word == "secure")
      secure(line);
    else if (word == "channel")
      channel(line);
    else if (word == "role")
      role(line);
    else if (word == "begin")
      begin(line);
    else
      line.fail(fmt::format("'{}' outside of a role", word));
  }

  void in_role(TextLine& line, const std::string& word) {
    if (word == "lane") {
      role_->lanes.push_back({.name = in_role_.lanes.add(line)});
      role_->lanes.back().order = line.named<Order>(line.take());
    } else if (word == "storage") {
      storage(line);
    } else if (word == "view") {
      view(line);
    } else if (word.starts_with('%')) {
      if (line.number<Id>(std::string_view(word).substr(1)) != role_->ops.size())
        line.fail(fmt::format("ops are numbered in order; expected %{}", role_->ops.size()));
      role_->ops.push_back(parse_op(line, p_, names_, in_role_));
      op_lines_.push_back(line.line());
    } else if (word == "end") {
      end();
    } else {
      line.fail(fmt::format("unknown word '{}'", word));
    }
  }

  void mesh(TextLine& line) {
    if (!p_.mesh.empty() || p_.world_size > 0) line.fail("the mesh is said once, before the world");
    while (line.more()) {
      const std::string& axis = line.take();
      const auto eq = axis.find('=');
      if (eq == axis.npos) line.fail("an axis is NAME=SIZE");
      const std::string name = axis.substr(0, eq);
      const bool word = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
      });
      if (!word) line.fail(fmt::format("'{}' is not the name of an axis: letters only", name));
      const auto colon = std::min(axis.find(':'), axis.size());
      const std::string_view size = std::string_view(axis).substr(eq + 1, colon - eq - 1);
      p_.mesh.push_back({.name = name, .size = line.number<int>(size, 1, most_ranks)});
      if (colon < axis.size()) p_.mesh.back().cut = line.named<Cut>(axis.substr(colon + 1));
    }
  }

  void world(TextLine& line) {
    if (p_.world_size > 0) line.fail("the world is said once");
    p_.world_size = line.number<int>(line.take());
    line.check([&] { check_mesh(p_); });
  }

  /// Other precisions follow from the types of storages.
  void precision(TextLine& line) {
    if (p_.fp8) line.fail("the precision is said once");
    if (const std::string& name = line.take(); name != "fp8")
      line.fail(
          fmt::format("precision '{}' is unknown; the only one that a program says is fp8", name));
    p_.fp8 = true;
  }

  void secure(TextLine& line) {
    if (p_.secure.neighbours > 0) line.fail("the secure sum is said once");
    p_.secure.neighbours = line.number<int>(line.value("neighbours"), 2, most_ranks);
    p_.secure.threshold = line.number<int>(line.value("threshold"), 1, p_.secure.neighbours + 1);
    p_.secure.range = line.number<double>(line.value("range"));
    p_.secure.levels = line.number<std::uint32_t>(line.value("levels"), 2, 0xffffffffU);
    if (!(p_.secure.range > 0) || !std::isfinite(p_.secure.range))
      line.fail("range must be above 0, and finite");
  }

  /// Called by lines that need the number of ranks.
  void need_world(const TextLine& line) const {
    if (p_.world_size == 0) line.fail("the world is to be said before this");
  }

  void channel(TextLine& line) {
    need_world(line);
    const auto ranks = static_cast<std::size_t>(p_.world_size);
    Channel c{.name = names_.channels.add(line)};
    c.match = line.named<Match>(line.take());
    if (auto v = line.optional("axes")) c.group.axes = parse_axes(line, p_, *v);
    if (auto v = line.optional("colour")) {
      colours_ += ranks;
      if (colours_ > most_colours)
        line.fail(fmt::format("channels have more than {} colours in all", most_colours));
      c.group.colour = parse_ids(line, *v, ranks);
    }
    line.check([&] { check_channel(p_, c); });
    p_.channels.push_back(std::move(c));
  }

  void role(TextLine& line) {
    need_world(line);
    Role r{.name = names_.roles.add(line)};
    r.ranks =
        parse_ids(line, line.value("ranks"), static_cast<std::size_t>(p_.world_size) - played_);
    if (r.ranks.empty()) line.fail("no rank plays it");
    played_ += r.ranks.size();
    r.free_running = line.accept("free_running");
    if (auto v = line.optional("round")) {
      r.round.steps = line.number<int>(*v, 1, std::numeric_limits<int>::max());
      r.round.deadline = line.number<double>(line.value("deadline"));
    }
    p_.roles.push_back(std::move(r));
    begun_.push_back(false);
  }

  void begin(TextLine& line) {
    const Id id = names_.roles.find(line, line.take());
    if (begun_[id]) line.fail(fmt::format("role {} begins twice", p_.roles[id].name));
    begun_[id] = true;
    role_ = &p_.roles[id];
    in_role_ = {};
    op_lines_.clear();
  }

  void storage(TextLine& line) {
    Storage s{.name = in_role_.storages.add(line)};
    s.life = line.named<Life>(line.take());
    s.dtype = line.named<DType>(line.take());
    s.elements = line.number<std::int64_t>(line.take());
    s.indices = line.number<int>(line.value("indices"));
    s.versions = line.number<int>(line.value("versions"));
    if (auto v = line.optional("place")) s.place = line.named<Place>(*v);
    line.check([&] { check_storage(*role_, s); });
    role_->storages.push_back(std::move(s));
  }

  void view(TextLine& line) {
    View v{.name = in_role_.views.add(line)};
    v.storage = in_role_.storages.find(line, line.take());
    v.begin = line.number<std::int64_t>(line.take());
    v.end = line.number<std::int64_t>(line.take());
    if (auto s = line.optional("slice")) v.slice = parse_axes(line, p_, *s);
    line.check([&] { check_view(p_, *role_, v); });
    role_->views.push_back(std::move(v));
  }

  /// Checks the ops at the end of a role, because an op may wait for a later op.
  void end() {
    for (Id o = 0; o < role_->ops.size(); ++o) try {
        check_op(p_, *role_, o);
      } catch (const ProgramError& error) {
        throw ProgramError(fmt::format("program text, line {}: {}", op_lines_[o], error.what()));
      }
    check_rounds(p_, *role_);
    role_ = nullptr;
  }

  Program p_ = {.world_size = 0};
  Role* role_ = nullptr;  // the role between 'begin' and 'end'; nullptr: outside of roles
  Names names_ = {};
  RoleNames in_role_ = {};
  std::vector<int> op_lines_ = {};
  std::vector<bool> begun_ = {};  // by role
  std::size_t colours_ = 0, played_ = 0;
  bool headed_ = false;
};

}  // namespace

Program parse_program(const std::string& text) {
  Reader reader;
  std::istringstream in(text);
  int number = 0;
  for (std::string raw; std::getline(in, raw);)
    if (TextLine line(raw, ++number); !line.empty()) reader.read(line);
  return reader.take();
}

}  // namespace rehearse::program
