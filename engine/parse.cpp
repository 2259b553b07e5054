// Reads what text.cpp prints; every error quotes its line.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "engine/errors.h"
#include "engine/names.h"
#include "engine/program.h"
#include "engine/text_version.h"

namespace rehearse {
namespace {

/// Splits a line into words and reads them with errors that quote the line.
class Line {
 public:
  Line(std::string text, int number) : text_(std::move(text)), number_(number) {
    std::istringstream in(text_);
    for (std::string word; in >> word;) words_.push_back(word);
  }
  bool empty() const { return words_.empty(); }
  bool more() const { return next_ < words_.size(); }
  const std::string& peek() const {
    if (!more()) fail("the line ends too early");
    return words_[next_];
  }
  const std::string& take() {
    const std::string& word = peek();
    ++next_;
    return word;
  }
  bool accept(std::string_view word) { return more() && words_[next_] == word && ++next_; }
  /// "key=value": value; the word must be there.
  std::string value(std::string_view key) {
    auto v = optional(key);
    if (!v) fail(fmt::format("expected {}=...", key));
    return *v;
  }
  std::optional<std::string> optional(std::string_view key) {
    if (!more()) return std::nullopt;
    const std::string& w = words_[next_];
    if (w.size() <= key.size() || w.compare(0, key.size(), key) != 0 || w[key.size()] != '=')
      return std::nullopt;
    return words_[next_++].substr(key.size() + 1);
  }
  template <class T>
  T number(std::string_view text) const {
    T v{};
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (error != std::errc{} || end != text.data() + text.size())
      fail(fmt::format("'{}' is not a number", text));
    return v;
  }
  template <class E>
  E named(std::string_view text) const {
    if (auto e = from_name<E>(text)) return *e;
    fail(fmt::format("'{}' is not one of {}", text, fmt::join(Names<E>::all, ", ")));
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw ProgramError(fmt::format("program text, line {}: {}\n  {}", number_, why, text_));
  }

 private:
  std::string text_;
  int number_;
  std::vector<std::string> words_ = {};
  std::size_t next_ = 0;
};

std::vector<Id> parse_ids(const Line& line, std::string_view text) {
  std::vector<Id> ids;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (part == "-") {
      ids.push_back(none);
      continue;
    }
    const auto dash = part.find('-');
    const Id first = line.number<Id>(part.substr(0, dash));
    const Id last = dash == part.npos ? first : line.number<Id>(part.substr(dash + 1));
    for (Id i = first; i <= last; ++i) ids.push_back(i);
  }
  return ids;
}

Axes parse_axes(const Line& line, const Program& p, std::string_view text) {
  Axes axes = 0;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    unsigned bit = 32;
    for (unsigned a = 0; a < p.mesh.size(); ++a)
      if (part == p.mesh[a].name) bit = a;
    if (bit == 32 && part.starts_with('g')) bit = line.number<unsigned>(part.substr(1));
    if (bit >= 32) line.fail(fmt::format("'{}' is not an axis of the mesh", part));
    axes |= Axes{1} << bit;
  }
  return axes;
}

struct Index {  // names within the role being read
  std::unordered_map<std::string, Id> lanes = {}, storages = {}, views = {};
};

Id look_up(const Line& line, const std::unordered_map<std::string, Id>& names,
           const std::string& name, std::string_view what) {
  auto it = names.find(name);
  if (it == names.end()) line.fail(fmt::format("unknown {} '{}'", what, name));
  return it->second;
}

Ref parse_ref(const Line& line, const Program& p, const Index& index, const std::string& word) {
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
  ref.view = look_up(line, index.views, std::string(until("#@/")), "view");
  while (!rest.empty()) {
    const char mark = rest.front();
    rest.remove_prefix(1);
    if (mark == '#')
      ref.index = line.number<std::uint16_t>(until("#@/"));
    else if (mark == '@')
      ref.age = line.number<std::uint8_t>(until("#@/"));
    else {
      const std::string_view part = until("/");
      const bool shard = part.starts_with("shard("), partial = part.starts_with("partial(");
      if ((!shard && !partial) || part.back() != ')')
        line.fail(fmt::format("unknown layout '{}'", part));
      const auto open = part.find('(');
      (shard ? ref.layout.shard : ref.layout.partial) =
          parse_axes(line, p, part.substr(open + 1, part.size() - open - 2));
    }
  }
  return ref;
}

Id channel_named(const Line& line, const Program& p, const std::string& name) {
  for (Id c = 0; c < p.channels.size(); ++c)
    if (p.channels[c].name == name) return c;
  line.fail(fmt::format("unknown channel '{}'", name));
}

Id role_named(const Line& line, const Program& p, const std::string& name) {
  for (Id r = 0; r < p.roles.size(); ++r)
    if (p.roles[r].name == name) return r;
  line.fail(fmt::format("unknown role '{}'", name));
}

Work parse_work(Line& line, const Program& p) {
  const std::string word = line.take();
  if (auto pass = from_name<Pass>(word)) {
    Compute c{.pass = *pass};
    const std::string& segment = line.take();
    c.segment = line.number<Id>(std::string_view(segment).substr(1));
    c.samples = line.number<int>(line.value("n"));
    c.microbatch = line.number<int>(line.value("mb"));
    return c;
  }
  if (auto kind = from_name<Local>(word)) {
    Kernel k{.kind = *kind};
    if (auto v = line.optional("scale")) k.scale = line.number<double>(*v);
    if (auto v = line.optional("of")) k.of = line.number<std::int64_t>(*v);
    if (auto v = line.optional("keep")) k.keep = line.number<std::int64_t>(*v);
    if (auto v = line.optional("choose")) k.selector = line.named<Selector>(*v);
    if (auto v = line.optional("feedback")) k.feedback = line.named<Feedback>(*v);
    if (auto v = line.optional("coding")) k.coding = line.named<Coding>(*v);
    if (auto v = line.optional("stride")) k.stride = line.number<int>(*v);
    return k;
  }
  if (word == "update") return Update{};
  if (auto move = from_name<Move>(word)) {
    Collective c{.channel = channel_named(line, p, line.take()), .move = *move};
    if (auto v = line.optional("by")) c.algorithm = line.named<Algorithm>(*v);
    if (auto v = line.optional("root")) c.root = role_named(line, p, *v);
    return c;
  }
  if (word == "send") {
    const Id channel = channel_named(line, p, line.take());
    return Send{.channel = channel, .peer = role_named(line, p, line.value("to"))};
  }
  if (word == "recv") {
    const Id channel = channel_named(line, p, line.take());
    return Recv{.channel = channel, .peer = role_named(line, p, line.value("from"))};
  }
  if (word == "put") {
    Put m{.channel = channel_named(line, p, line.take())};
    m.peer = role_named(line, p, line.value("to"));
    if (auto v = line.optional("reply")) m.reply = channel_named(line, p, *v);
    return m;
  }
  if (word == "take") return Take{.channel = channel_named(line, p, line.take())};
  line.fail(fmt::format("unknown work '{}'", word));
}

Op parse_op(Line& line, const Program& p, const Index& index) {
  Op op{.lane = look_up(line, index.lanes, line.take(), "lane")};
  op.work = parse_work(line, p);
  while (line.more() && line.peek() != "after" && !line.peek().starts_with("shift="))
    op.refs.push_back(parse_ref(line, p, index, line.take()));
  if (line.accept("after"))
    while (line.more() && line.peek().starts_with('%')) {
      std::string word = line.take().substr(1);
      After after;
      if (word.ends_with('!')) after.throttle = true, word.pop_back();
      const auto at = word.find('@');
      after.op = line.number<Id>(std::string_view(word).substr(0, at));
      if (at != word.npos)
        after.lag = line.number<std::uint8_t>(std::string_view(word).substr(at + 1));
      op.after.push_back(after);
    }
  if (auto v = line.optional("shift")) op.shift = line.number<std::uint8_t>(*v);
  if (line.more()) line.fail(fmt::format("unexpected '{}'", line.peek()));
  return op;
}

}  // namespace

Program parse_program(const std::string& text) {
  Program p;
  Role* role = nullptr;
  Index index;
  std::istringstream in(text);
  int number = 0;
  bool headed = false;
  for (std::string raw; std::getline(in, raw);) {
    Line line(raw, ++number);
    if (line.empty()) continue;
    const std::string word = line.take();
    if (!headed) {
      if (word != "rehearse-program")
        line.fail("not a program: the first line is 'rehearse-program 1'");
      if (const int v = line.number<int>(line.take()); v != text_version)
        line.fail(
            fmt::format("version {} is unknown; this build reads version {}", v, text_version));
      headed = true;
    } else if (word == "method")
      p.method = line.take();
    else if (word == "mesh") {
      while (line.more()) {
        const std::string axis = line.take();
        const auto eq = axis.find('=');
        if (eq == axis.npos) line.fail("an axis is NAME=SIZE");
        p.mesh.push_back(
            {axis.substr(0, eq), line.number<int>(std::string_view(axis).substr(eq + 1))});
      }
    } else if (word == "world")
      p.world_size = line.number<int>(line.take());
    else if (word == "channel") {
      Channel c{.name = line.take()};
      c.match = line.named<Match>(line.take());
      if (auto v = line.optional("axes")) c.group.axes = parse_axes(line, p, *v);
      if (auto v = line.optional("colour")) c.group.colour = parse_ids(line, *v);
      p.channels.push_back(std::move(c));
    } else if (word == "role") {
      Role r{.name = line.take()};
      r.ranks = parse_ids(line, line.value("ranks"));
      r.free_running = line.accept("free_running");
      p.roles.push_back(std::move(r));
    } else if (word == "begin") {
      role = &p.roles[role_named(line, p, line.take())];
      index = {};
    } else if (!role)
      line.fail(fmt::format("'{}' outside of a role", word));
    else if (word == "end")
      role = nullptr;
    else if (word == "lane") {
      const std::string name = line.take();
      index.lanes[name] = static_cast<Id>(role->lanes.size());
      role->lanes.push_back({name, line.named<Order>(line.take())});
    } else if (word == "storage") {
      Storage s{.name = line.take()};
      s.life = line.named<Life>(line.take());
      s.dtype = line.named<DType>(line.take());
      s.elements = line.number<std::int64_t>(line.take());
      s.indices = line.number<int>(line.value("indices"));
      s.versions = line.number<int>(line.value("versions"));
      index.storages[s.name] = static_cast<Id>(role->storages.size());
      role->storages.push_back(std::move(s));
    } else if (word == "view") {
      View v{.name = line.take()};
      v.storage = look_up(line, index.storages, line.take(), "storage");
      v.begin = line.number<std::int64_t>(line.take());
      v.end = line.number<std::int64_t>(line.take());
      if (auto s = line.optional("slice")) v.slice = parse_axes(line, p, *s);
      index.views[v.name] = static_cast<Id>(role->views.size());
      role->views.push_back(std::move(v));
    } else if (word.starts_with('%')) {
      if (line.number<Id>(std::string_view(word).substr(1)) != role->ops.size())
        line.fail(fmt::format("ops are numbered in order; expected %{}", role->ops.size()));
      role->ops.push_back(parse_op(line, p, index));
    } else
      line.fail(fmt::format("unknown word '{}'", word));
  }
  if (!headed) throw ProgramError("program text is empty");
  return p;
}

}  // namespace rehearse
