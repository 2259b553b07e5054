#include "engine/program/parse_op.h"

#include <algorithm>

#include "engine/base/names.h"
#include "engine/program/program_tables.h"

namespace rehearse::program {

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

namespace {

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

}  // namespace

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

}  // namespace rehearse::program
