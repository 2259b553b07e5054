// Prints a program as text, one line per op, for people and for golden files. Printing and parsing
// are exact inverses. An op (here on two lines):
//
//   %12 compute forward s3 n=2 mb=1 param<W.L1.attention.split@1 input<x3#1
//   output>x4#1/partial(tp) after %9 %31@1
//
// A ref is slot, mode (< read, > write, + add), view, #index, @age, /layout; index 0 and age 0 are
// left out. `after %31@1` waits for the instance of the step before; `%31!` is a throttle. At the
// end of a line, `shift=1`, and the steps in which the op works: `every=10 from=20 until=100`.
#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "engine/base/fnv.h"
#include "engine/base/names.h"
#include "engine/base/units.h"
#include "engine/program/program.h"
#include "engine/program/text_version.h"

namespace rehearse::program {
namespace {

/// Appends to a text, so that an op of many refs is not copied for each of them.
template <class... Args>
void append(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

std::string axes_text(const Program& p, Axes axes) {
  std::string out;
  for (unsigned a = 0; a < 32; ++a)
    if (axes >> a & 1)
      out +=
          (out.empty() ? "" : ",") + (a < p.mesh.size() ? p.mesh[a].name : fmt::format("g{}", a));
  return out;
}

void append_ref(std::string& out, const Program& p, const Role& role, const Ref& ref) {
  out += name_of(ref.slot);
  out += "<>+"[static_cast<int>(ref.mode)];
  out += role.views[ref.view].name;
  if (ref.index) append(out, "#{}", int{ref.index});
  if (ref.age) append(out, "@{}", int{ref.age});
  if (ref.layout.shard) append(out, "/shard({})", axes_text(p, ref.layout.shard));
  if (ref.layout.partial) append(out, "/partial({})", axes_text(p, ref.layout.partial));
  if (ref.layout.own) append(out, "/own({})", axes_text(p, ref.layout.own));
}

std::string work_text(const Program& p, const Work& work) {
  return std::visit(
      overloaded{
          [](const Compute& c) {
            std::string out = fmt::format("{} s{} n={} mb={}", name_of(c.pass), c.segment,
                                          c.samples, c.microbatch);
            if (c.part != Part::whole) out += fmt::format(" part={}", name_of(c.part));
            if (c.block != none) out += fmt::format(" block={}", c.block);
            return out;
          },
          [](const Kernel& k) {
            std::string out(name_of(k.kind));
            if (k.scale != 1) out += fmt::format(" scale={}", k.scale);
            if (k.of) out += fmt::format(" of={}", k.of);
            if (k.keep) out += fmt::format(" keep={}", k.keep);
            if (k.selector != Selector::top_k)
              out += fmt::format(" choose={}", name_of(k.selector));
            if (k.feedback != Feedback::conserving)
              out += fmt::format(" feedback={}", name_of(k.feedback));
            if (k.coding != Coding::index32) out += fmt::format(" coding={}", name_of(k.coding));
            if (k.draw) out += fmt::format(" draw={}", k.draw);
            if (k.stride != 1) out += fmt::format(" stride={}", k.stride);
            if (k.compressor != Compressor::int8)
              out += fmt::format(" compressor={}", name_of(k.compressor));
            if (k.bits != 8) out += fmt::format(" bits={}", k.bits);
            if (k.block) out += fmt::format(" block={}", k.block);
            if (k.rank) out += fmt::format(" rank={}", k.rank);
            if (k.momentum != 0) out += fmt::format(" momentum={}", k.momentum);
            return out;
          },
          [](const Update& u) {
            std::string out = "update";
            if (u.frozen) out += fmt::format(" frozen={}", u.frozen);
            if (u.restart) out += fmt::format(" restart={}", u.restart);
            return out;
          },
          [&](const Collective& c) {
            std::string out = fmt::format("{} {}", name_of(c.move), p.channels[c.channel].name);
            if (c.algorithm != Algorithm::automatic)
              out += fmt::format(" by={}", name_of(c.algorithm));
            if (c.root != none) out += fmt::format(" root={}", p.roles[c.root].name);
            if (c.distance != 0) out += fmt::format(" distance={}", c.distance);
            return out;
          },
          [&](const Send& s) {
            return fmt::format("send {} to={}", p.channels[s.channel].name, p.roles[s.peer].name);
          },
          [&](const Recv& r) {
            return fmt::format("recv {} from={}", p.channels[r.channel].name, p.roles[r.peer].name);
          },
          [&](const Put& m) {
            std::string out =
                fmt::format("put {} to={}", p.channels[m.channel].name, p.roles[m.peer].name);
            if (m.reply != none) out += fmt::format(" reply={}", p.channels[m.reply].name);
            return out;
          },
          [&](const Take& t) { return fmt::format("take {}", p.channels[t.channel].name); },
          [](const Copy&) { return std::string("copy"); },
          [](const Save& s) {
            return fmt::format("save to={}{}", name_of(s.to),
                               s.to == Medium::peers ? fmt::format(" group={}", s.group) : "");
          },
          [](const Pause& i) { return fmt::format("pause seconds={}", i.seconds); },
          [](const Issue& i) { return fmt::format("issue {}", to_text(Seconds(i.seconds))); }},
      work);
}

/// A list of ids in which runs are ranges, and none is "-": 0-3,7,-.
std::string ids_text(const std::vector<Id>& ids) {
  std::string out;
  for (std::size_t i = 0; i < ids.size();) {
    std::size_t j = i;
    while (j + 1 < ids.size() && ids[j + 1] == ids[j] + 1 && ids[j] != none) ++j;
    if (i) out += ',';
    out += ids[i] == none ? "-" : fmt::format("{}", ids[i]);
    if (j > i) out += fmt::format("-{}", ids[j]);
    i = j + 1;
  }
  return out;
}

void append_op(std::string& out, const Program& p, const Role& role, Id id) {
  const Op& op = role.ops[id];
  append(out, "%{} {} ", id, role.lanes[op.lane].name);
  out += work_text(p, op.work);
  for (const Ref& ref : op.refs) {
    out += ' ';
    append_ref(out, p, role, ref);
  }
  if (!op.after.empty()) out += " after";
  for (const After& a : op.after) {
    append(out, " %{}", a.op);
    if (a.lag) append(out, "@{}", int{a.lag});
    if (a.throttle) out += '!';
  }
  if (op.shift) append(out, " shift={}", int{op.shift});
  if (op.when.every != 1) append(out, " every={}", op.when.every);
  if (op.when.from) append(out, " from={}", op.when.from);
  if (op.when.until) append(out, " until={}", op.when.until);
}

}  // namespace

std::string to_text(const Program& p, const Role& role, Id id) {
  std::string out;
  append_op(out, p, role, id);
  return out;
}

std::string to_text(const Program& p) {
  std::string out = fmt::format("rehearse-program {}\nmethod {}\nmesh", text_version, p.method);
  for (const Axis& axis : p.mesh)
    out += fmt::format(" {}={}{}", axis.name, axis.size,
                       axis.cut == Cut::contiguous ? "" : fmt::format(":{}", name_of(axis.cut)));
  out += fmt::format("\nworld {}\n", p.world_size);
  if (p.fp8) out += "precision fp8\n";
  if (p.secure != SecureSum{})
    out += fmt::format("secure neighbours={} threshold={} range={} levels={}\n",
                       p.secure.neighbours, p.secure.threshold, p.secure.range, p.secure.levels);
  for (const Channel& c : p.channels) {
    out += fmt::format("channel {} {}", c.name, name_of(c.match));
    if (c.group.axes) out += fmt::format(" axes={}", axes_text(p, c.group.axes));
    if (!c.group.colour.empty()) out += fmt::format(" colour={}", ids_text(c.group.colour));
    out += '\n';
  }
  for (const Role& role : p.roles)  // before all op lists, because ops name peer roles
    out += fmt::format("role {} ranks={}{}{}\n", role.name, ids_text(role.ranks),
                       role.free_running ? " free_running" : "",
                       role.round.steps == 0 ? ""
                                             : fmt::format(" round={} deadline={}",
                                                           role.round.steps, role.round.deadline));
  for (const Role& role : p.roles) {
    out += fmt::format("\nbegin {}\n", role.name);
    for (const Lane& lane : role.lanes)
      out += fmt::format("lane {} {}\n", lane.name, name_of(lane.order));
    for (const Storage& s : role.storages)
      append(out, "storage {} {} {} {} indices={} versions={}{}\n", s.name, name_of(s.life),
             name_of(s.dtype), s.elements, s.indices, s.versions,
             s.place == Place::device ? "" : fmt::format(" place={}", name_of(s.place)));
    for (const View& v : role.views)
      append(out, "view {} {} {} {}{}\n", v.name, role.storages[v.storage].name, v.begin, v.end,
             v.slice ? " slice=" + axes_text(p, v.slice) : "");
    for (Id op = 0; op < role.ops.size(); ++op) {
      append_op(out, p, role, op);
      out += '\n';
    }
    out += "end\n";
  }
  return out;
}

std::uint64_t hash_of(const Program& program) { return fnv1a(to_text(program)); }

}  // namespace rehearse::program
