// Parses the text that text.cpp prints. Every error quotes its line. The text is untrusted input:
// counts and ranges are checked against the world and the mesh before anything of that size is
// allocated. So time and memory are proportional to the text and the world size.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/program/program.h"
#include "engine/program/program_tables.h"
#include "engine/program/text_line.h"
#include "engine/program/text_version.h"

namespace rehearse::program {
namespace {

/// The most colours of all channels together. A few characters of text can give each rank a colour.
constexpr std::size_t most_colours = std::size_t{4} * most_ranks;

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

Axes parse_axes(const TextLine& line, const Program& p, std::string_view text) {
  Axes axes = 0;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    unsigned bit = 32;
    for (unsigned a = 0; a < p.mesh.size(); ++a)
      if (part == p.mesh[a].name) bit = a;
    const auto first_colour_bit =
        static_cast<unsigned>(p.mesh.size());  // first bit of groups by colour
    if (bit == 32 && part.starts_with('g'))
      bit = line.number<unsigned>(part.substr(1), first_colour_bit, 31);
    if (bit == 32) line.fail(fmt::format("'{}' is not an axis of the mesh", part));
    axes |= Axes{1} << bit;
  }
  return axes;
}

Ref parse_ref(const TextLine& line, const Program& p, const RoleNames& index,
              const std::string& word) {
  const auto mode = word.find_first_of("<>+");
  if (mode == word.npos) line.fail(fmt::format("'{}' is not a ref", word));
  Ref ref{.slot = line.named<Slot>(word.substr(0, mode)),
          .mode = word[mode] == '<'   ? Mode::read
                  : word[mode] == '>' ? Mode::write
                                      : Mode::add};
  std::string_view rest = std::string_view(word).substr(mode + 1);
  auto until = [&](std::string_view stops) {
    const auto n = std::min(rest.find_first_of(stops), rest.size());
    const std::string_view part = rest.substr(0, n);
    rest.remove_prefix(n);
    return part;
  };
  ref.view = index.views.find(line, std::string(until("#@/")));
  while (!rest.empty()) {
    const char mark = rest.front();
    rest.remove_prefix(1);
    if (mark == '#')
      ref.index = line.number<int>(until("#@/"), 0, decltype(ref.index)::most);
    else if (mark == '@')
      ref.age = line.number<int>(until("#@/"), 0, decltype(ref.age)::most);
    else {
      const std::string_view part = until("/");
      const auto open = std::min(part.find('('), part.size());
      const std::string_view kind = part.substr(0, open);
      Axes* const axes = kind == "shard"     ? &ref.layout.shard
                         : kind == "partial" ? &ref.layout.partial
                         : kind == "own"     ? &ref.layout.own
                                             : nullptr;
      if (axes == nullptr || open == part.size() || part.back() != ')')
        line.fail(fmt::format("unknown layout '{}'", part));
      *axes = parse_axes(line, p, part.substr(open + 1, part.size() - open - 2));
    }
  }
  return ref;
}

Work parse_work(TextLine& line, const Names& names) {
  const std::string word = line.take();
  if (auto pass = from_name<Pass>(word)) {
    Compute c{.pass = *pass};
    const std::string& segment = line.take();
    if (!segment.starts_with('s')) line.fail(fmt::format("'{}' is not a segment", segment));
    c.segment = line.number<Id>(std::string_view(segment).substr(1));
    c.samples = line.number<int>(line.value("n"));
    c.microbatch = line.number<int>(line.value("mb"));
    if (auto v = line.optional("part")) c.part = line.named<Part>(*v);
    if (auto v = line.optional("block")) c.block = line.number<Id>(*v, 0, none - 1);
    return c;
  }
  if (auto kind = from_name<KernelKind>(word)) {
    Kernel k{.kind = *kind};
    if (auto v = line.optional("scale")) k.scale = line.number<double>(*v);
    if (auto v = line.optional("of")) k.of = line.number<std::int64_t>(*v);
    if (auto v = line.optional("keep")) k.keep = line.number<std::int64_t>(*v);
    if (auto v = line.optional("choose")) k.selector = line.named<Selector>(*v);
    if (auto v = line.optional("feedback")) k.feedback = line.named<Feedback>(*v);
    if (auto v = line.optional("coding")) k.coding = line.named<Coding>(*v);
    if (auto v = line.optional("draw")) k.draw = line.number<Id>(*v);
    if (auto v = line.optional("stride")) k.stride = line.number<int>(*v);
    if (auto v = line.optional("compressor")) k.compressor = line.named<Compressor>(*v);
    if (auto v = line.optional("bits")) k.bits = line.number<int>(*v);
    if (auto v = line.optional("block")) k.block = line.number<std::int64_t>(*v);
    if (auto v = line.optional("rank")) k.rank = line.number<int>(*v);
    if (auto v = line.optional("momentum")) k.momentum = line.number<double>(*v);
    return k;
  }
  if (word == "update") {
    Update u;
    if (auto v = line.optional("frozen")) u.frozen = line.number<int>(*v);
    if (auto v = line.optional("restart")) u.restart = line.number<int>(*v);
    return u;
  }
  if (auto move = from_name<Move>(word)) {
    Collective c{.channel = names.channels.find(line, line.take()), .move = *move};
    if (auto v = line.optional("by")) c.algorithm = line.named<Algorithm>(*v);
    if (auto v = line.optional("root")) c.root = names.roles.find(line, *v);
    if (auto v = line.optional("distance")) c.distance = line.number<int>(*v);
    return c;
  }
  if (word == "send") {
    const Id channel = names.channels.find(line, line.take());
    return Send{.channel = channel, .peer = names.roles.find(line, line.value("to"))};
  }
  if (word == "recv") {
    const Id channel = names.channels.find(line, line.take());
    return Recv{.channel = channel, .peer = names.roles.find(line, line.value("from"))};
  }
  if (word == "put") {
    Put m{.channel = names.channels.find(line, line.take())};
    m.peer = names.roles.find(line, line.value("to"));
    if (auto v = line.optional("reply")) m.reply = names.channels.find(line, *v);
    return m;
  }
  if (word == "take") return Take{.channel = names.channels.find(line, line.take())};
  if (word == "copy") return Copy{};
  if (word == "save") {
    const auto to = line.named<Medium>(line.value("to"));
    return Save{.to = to, .group = to == Medium::peers ? line.number<int>(line.value("group")) : 1};
  }
  if (word == "pause") return Pause{.seconds = line.number<double>(line.value("seconds"))};
  line.fail(fmt::format("unknown work '{}'", word));
}

Op parse_op(TextLine& line, const Program& p, const Names& names, const RoleNames& role) {
  Op op{.lane = role.lanes.find(line, line.take())};
  op.work = parse_work(line, names);
  while (line.more() && line.peek() != "after" && line.peek().find('=') == std::string::npos)
    op.refs.push_back(parse_ref(line, p, role, line.take()));
  if (line.accept("after"))
    while (line.more() && line.peek().starts_with('%')) {
      std::string word = line.take().substr(1);
      After after;
      if (word.ends_with('!')) after.throttle = true, word.pop_back();
      const auto at = word.find('@');
      after.op = line.number<Id>(std::string_view(word).substr(0, at));
      if (at != word.npos)
        after.lag =
            line.number<int>(std::string_view(word).substr(at + 1), 0, decltype(after.lag)::most);
      op.after.push_back(after);
    }
  if (auto v = line.optional("shift")) op.shift = line.number<int>(*v, 0, most_shift);
  if (auto v = line.optional("every")) op.when.every = line.number<int>(*v);
  if (auto v = line.optional("from")) op.when.from = line.number<int>(*v);
  if (auto v = line.optional("until")) op.when.until = line.number<int>(*v);
  return op;
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
