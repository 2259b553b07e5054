#include "engine/program/program_tables.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <set>

#include "engine/base/names.h"
#include "engine/program/kernel_checks.h"
#include "engine/program/low_rank.h"
#include "engine/program/packets.h"
#include "engine/program/rounds.h"

namespace rehearse::program {
namespace {

/// Whether the product of `of` and the factors is at most `most`; all must be at least 0.
bool fits(std::int64_t of, std::initializer_list<std::int64_t> factors, std::int64_t most) {
  for (const std::int64_t factor : factors)
    if (__builtin_mul_overflow(of, factor, &of) || of > most) return false;
  return of <= most;
}

[[noreturn]] void refuse(const Role& role, const std::string& why) {
  throw ProgramError(fmt::format("role {}: {}", role.name, why));
}

void check_ref(const Program& p, const Role& role, Id o, const Ref& ref) {
  if (ref.view >= role.views.size())
    refuse(role, fmt::format("op %{} names view {}, of {}", o, ref.view, role.views.size()));
  const Storage& storage = role.storages[role.views[ref.view].storage];
  if (ref.index >= storage.indices)
    refuse(p, role, o,
           fmt::format("index {} of '{}', which has {}", int{ref.index}, storage.name,
                       storage.indices));
  if ((ref.layout.own & (ref.layout.shard | ref.layout.partial)) != 0)
    refuse(p, role, o,
           fmt::format("'{}' is each rank's own along an axis along which it is a shard or a "
                       "partial sum",
                       role.views[ref.view].name));
}

/// Checks the roles that an op communicates with, and the channel of a reply.
void check_peers(const Program& p, const Role& role, Id o) {
  const auto check = [&](Id other, std::size_t of, const char* what) {
    if (other >= of) refuse(role, fmt::format("op %{} names {} {}, of {}", o, what, other, of));
  };
  std::visit(overloaded{[&](const Send& s) { check(s.peer, p.roles.size(), "role"); },
                        [&](const Recv& r) { check(r.peer, p.roles.size(), "role"); },
                        [&](const Put& m) {
                          check(m.peer, p.roles.size(), "role");
                          if (m.reply != none) check(m.reply, p.channels.size(), "channel");
                        },
                        [&](const Collective& c) {
                          if (c.root != none) check(c.root, p.roles.size(), "role");
                        },
                        [](const auto&) {}},
             role.ops[o].work);
}

/// Checks the numbers that executors use as sizes.
void check_numbers(const Program& p, const Role& role, Id o) {
  const auto must = [&](bool good, const char* what, auto value, const std::string& range) {
    if (!good) refuse(p, role, o, fmt::format("{} is {}, but must be {}", what, value, range));
  };
  const Op& op = role.ops[o];
  must(op.shift <= most_shift, "the shift", int{op.shift}, fmt::format("at most {}", most_shift));
  must(op.when.every >= 1, "every", op.when.every, "at least 1");
  must(op.when.from >= 0, "from", op.when.from, "at least 0");
  must(op.when.until == 0 || op.when.until > op.when.from, "until", op.when.until,
       fmt::format("above {}, or 0", op.when.from));
  const bool always_works =
      std::holds_alternative<Compute>(op.work) || std::holds_alternative<Send>(op.work) ||
      std::holds_alternative<Recv>(op.work) || std::holds_alternative<Put>(op.work) ||
      std::holds_alternative<Take>(op.work);
  if (always_works && op.when != When{})
    refuse(p, role, o, "passes and messages work in every step");
  if (const auto* pause = std::get_if<Pause>(&op.work))
    must(pause->seconds >= 0 && pause->seconds <= most_pause, "seconds", pause->seconds,
         fmt::format("from 0 to {}", most_pause));
  if (const auto* update = std::get_if<Update>(&op.work)) {
    must(update->frozen >= 0, "frozen", update->frozen, "at least 0");
    must(update->restart >= 0, "restart", update->restart, "at least 0");
  }
  if (const auto* compute = std::get_if<Compute>(&op.work)) {
    must(compute->samples >= 1, "n", compute->samples, "at least 1");
    constexpr int most = decltype(Ref::index)::most;
    must(compute->microbatch >= 0 && compute->microbatch <= most, "mb", compute->microbatch,
         fmt::format("from 0 to {}", most));
    const int blocks = size_of(p, axis_named(p, "cp"));
    must(compute->block == none || static_cast<int>(compute->block) < blocks, "block",
         compute->block, fmt::format("below {}, the size of the axis cp", blocks));
    if ((compute->part == Part::whole && compute->block != none) ||
        (compute->part != Part::whole && is_backward(compute->pass) &&
         compute->pass != Pass::backward))
      refuse(p, role, o, "only parts of attention have a block, and no half of a backward is one");
  } else if (const auto* kernel = std::get_if<Kernel>(&op.work)) {
    const std::int64_t most = most_bytes / 8;
    must(std::isfinite(kernel->scale), "scale", kernel->scale, "finite");
    must(!factorises(*kernel) || kernel->rank >= 1, "rank", kernel->rank, "at least 1");
    must(kernel->momentum >= 0 && kernel->momentum < 1, "momentum", kernel->momentum,
         "at least 0 and below 1");
    must(kernel->stride >= 1, "stride", kernel->stride, "at least 1");
    must(kernel->of >= 0 && kernel->of <= most, "of", kernel->of,
         fmt::format("from 0 to {}", most));
    const bool packet = kernel->kind == KernelKind::select ||
                        kernel->kind == KernelKind::scatter_add || quantises(*kernel);
    must(kernel->keep >= 0 && kernel->keep <= (packet ? kernel->of : most), "keep", kernel->keep,
         fmt::format("from 0 to {}", packet ? kernel->of : most));
    must(kernel->coding != Coding::values || kernel->selector == Selector::random_k, "coding",
         name_of(kernel->coding), "another coding, unless random_k chooses the entries");
    if (!quantises(*kernel)) return;
    must(kernel->keep >= 1, "keep", kernel->keep, "at least 1");
    const std::string codes = bits_text(kernel->compressor);
    must(codes_have(kernel->compressor, kernel->bits), "bits", kernel->bits, codes);
    must(kernel->block >= 1 && kernel->block <= most &&
             (kernel->block % 8 == 0 || kernel->block >= kernel->keep),
         "block", kernel->block, "a multiple of 8, or all entries of a packet");
  } else if (const auto* collective = std::get_if<Collective>(&op.work)) {
    must((collective->distance != 0) == (collective->move == Move::rotate), "distance",
         collective->distance, "above 0 in a rotate, and 0 in other moves");
  }
}

/// Refuses an op that makes something equal on all ranks of values that are each rank's own.
void check_own(const Program& p, const Role& role, Id o) {
  const Op& op = role.ops[o];
  const auto* collective = std::get_if<Collective>(&op.work);
  if (std::holds_alternative<Compute>(op.work)) return;  // activations are each rank's own anyway
  const Axes joined = collective == nullptr || collective->move == Move::rotate
                          ? Axes{0}
                          : p.channels[collective->channel].group.axes;
  Axes own = 0;
  for (const Ref& ref : op.refs)
    if (ref.mode != Mode::write) own |= ref.layout.own;
  for (const Ref& ref : op.refs)
    if (ref.mode != Mode::read && (own & ~joined & ~(ref.layout.own | ref.layout.partial)) != 0)
      refuse(p, role, o,
             fmt::format("'{}' is made of values that are each rank's own, but is stated to be "
                         "equal on all of them",
                         role.views[ref.view].name));
}

void check_update(const Program& p, const Role& role, Id o) {
  const Layout grad = find(role.ops[o], Slot::grad)->layout;
  if (grad.partial) refuse(p, role, o, "an update of a gradient that is still a partial sum");
  if (grad.own != find(role.ops[o], Slot::param)->layout.own)
    refuse(p, role, o, "an update of weights by a gradient of another layout");
}

void check_operands(const Program& p, const Role& role, Id o) {
  const Op& op = role.ops[o];
  const auto needs = [&](Slot slot) {
    if (find(op, slot) == nullptr) refuse(p, role, o, fmt::format("no {} operand", name_of(slot)));
  };
  std::visit(
      overloaded{
          [&](const Send&) { needs(Slot::source); }, [&](const Put&) { needs(Slot::source); },
          [&](const Recv&) { needs(Slot::target); }, [&](const Take&) { needs(Slot::target); },
          [&](const Update&) {
            needs(Slot::param), needs(Slot::grad);
            check_update(p, role, o);
          },
          [&](const Collective&) {
            if (find(op, Slot::source) == nullptr) needs(Slot::target);
          },
          [&](const Kernel& kernel) { check_kernel(p, role, o, kernel); },
          [&](const Copy&) {
            needs(Slot::source), needs(Slot::target);
            const Ref &source = *find(op, Slot::source), &target = *find(op, Slot::target);
            const auto type_of = [&](const Ref& ref) {
              return role.storages[role.views[ref.view].storage].dtype;
            };
            if (elements_of(p, role, source) != elements_of(p, role, target) ||
                type_of(source) != type_of(target))
              refuse(p, role, o, "copies between views of different type or size");
          },
          [&](const Save&) { needs(Slot::source); }, [](const Compute&) {}, [](const Pause&) {},
          [](const Issue&) {}},
      op.work);
  check_own(p, role, o);
  if (std::holds_alternative<Copy>(op.work) || std::holds_alternative<Save>(op.work)) return;
  const auto storage = [&](const Ref& ref) -> const Storage& {
    return role.storages[role.views[ref.view].storage];
  };
  // An update or a norm is computed where its gradient is; norm and loss scale are a few numbers.
  constexpr std::int64_t few = 2;
  const Place place = place_of(role, op);
  for (const Ref& ref : op.refs)
    if (storage(ref).place != place && storage(ref).elements > few)
      refuse(p, role, o,
             fmt::format("an op on the {} uses '{}', which is in the memory of the {}; only copy "
                         "and save use both",
                         name_of(place), storage(ref).name, name_of(storage(ref).place)));
}

}  // namespace

void check_mesh(const Program& p) {
  if (p.world_size < 1 || p.world_size > most_ranks)
    throw ProgramError(
        fmt::format("a world of {} ranks; must be from 1 to {}", p.world_size, most_ranks));
  std::int64_t ranks = 1;
  std::set<std::string> names;
  for (const Axis& axis : p.mesh) {
    if (!names.insert(axis.name).second)
      throw ProgramError(fmt::format("two axes of the mesh are named {}", axis.name));
    ranks = axis.size < 1 ? 0 : ranks * axis.size;
    if (ranks < 1 || ranks > p.world_size)
      throw ProgramError(
          fmt::format("axis {}={}: the mesh must have from 1 to {} places, as many "
                      "as the world has ranks at the most",
                      axis.name, axis.size, p.world_size));
  }
  constexpr std::size_t most_axes = 8;  // n axes allow 2^n ways to group the ranks
  if (p.mesh.size() > most_axes)
    throw ProgramError(fmt::format("a mesh of {} axes; at most {}", p.mesh.size(), most_axes));
}

void check_channel(const Program& p, const Channel& channel) {
  const Axes mesh = (Axes{1} << p.mesh.size()) - 1, axes = channel.group.axes;
  const auto& colour = channel.group.colour;
  if (colour.empty() && (axes & ~mesh) != 0)
    throw ProgramError(
        fmt::format("channel {}: g{} is no axis of the mesh: a group beside it needs "
                    "a colour for each rank",
                    channel.name, std::countr_zero(axes & ~mesh)));
  if (colour.empty()) return;
  if (colour.size() != static_cast<std::size_t>(p.world_size))
    throw ProgramError(fmt::format("channel {}: {} colours for {} ranks; one each", channel.name,
                                   colour.size(), p.world_size));
  if ((axes & mesh) != 0 || std::popcount(axes) != 1)
    throw ProgramError(
        fmt::format("channel {}: a group by colour has a bit of its own, from g{} to g31",
                    channel.name, p.mesh.size()));
}

std::int64_t check_storage(const Role& role, const Storage& s) {
  constexpr int most_indices = decltype(Ref::index)::most + 1;
  constexpr int most_versions = decltype(After::lag)::most;  // a wait's lag may be this large
  const bool counts = s.indices >= 1 && s.indices <= most_indices && s.versions >= 1 &&
                      s.versions <= most_versions && s.elements >= 0;
  if (!counts || !fits(s.elements, {size_of(s.dtype), s.indices, s.versions}, most_bytes))
    refuse(role,
           fmt::format("storage '{}' has impossible counts: {} elements, {} indices, {} versions; "
                       "from 1 to {} indices, from 1 to {} versions, at most {} bytes in all",
                       s.name, s.elements, s.indices, s.versions, most_indices, most_versions,
                       most_bytes));
  return s.elements * size_of(s.dtype) * s.indices * s.versions;
}

void check_view(const Program& p, const Role& role, const View& v) {
  if (v.storage >= role.storages.size())
    refuse(role, fmt::format("view '{}' has no storage", v.name));
  const Storage& s = role.storages[v.storage];
  if (v.begin < 0 || v.begin > v.end || v.end > s.elements ||
      (v.end - v.begin) % size_of(p, v.slice) != 0)
    refuse(role,
           fmt::format("view '{}' is [{}, {}) of '{}', which has {} elements{}", v.name, v.begin,
                       v.end, s.name, s.elements, v.slice ? " (and parts must be equal)" : ""));
}

void check_op(const Program& p, const Role& role, Id o) {
  const Op& op = role.ops[o];
  if (op.lane >= role.lanes.size()) refuse(role, fmt::format("op %{} is on no lane", o));
  for (const Ref& ref : op.refs) check_ref(p, role, o, ref);
  for (const After& a : op.after)
    if (a.op >= role.ops.size())
      refuse(role, fmt::format("op %{} waits for %{}, of {} ops", o, a.op, role.ops.size()));
  if (const Id c = channel_of(op.work); c != none && c >= p.channels.size())
    refuse(role, fmt::format("op %{} uses channel {}, of {}", o, c, p.channels.size()));
  check_peers(p, role, o);
  check_numbers(p, role, o);
  check_operands(p, role, o);
}

void check_tables(const Program& p) {
  if (p.roles.empty()) throw ProgramError("a program needs at least one role");
  check_mesh(p);
  for (const Channel& channel : p.channels) check_channel(p, channel);
  for (const Role& role : p.roles) {
    if (role.ranks.empty()) refuse(role, "no rank plays it");
    std::int64_t bytes = 0;
    for (const Storage& s : role.storages) {
      bytes += check_storage(role, s);
      if (bytes > most_bytes)
        refuse(role, fmt::format("its storages hold more than {} bytes", most_bytes));
    }
    for (const View& v : role.views) check_view(p, role, v);
    std::vector<std::int64_t> named(role.storages.size(), 0);
    for (Id o = 0; o < role.ops.size(); ++o) {
      check_op(p, role, o);
      for (const Ref& ref : role.ops[o].refs) ++named[role.views[ref.view].storage];
    }
    check_rounds(p, role);
    for (Id s = 0; s < role.storages.size(); ++s)
      if (const Storage& storage = role.storages[s];
          storage.indices > 1 && storage.indices > named[s])
        refuse(role, fmt::format("storage '{}' has {} instances, but ops name it {} times",
                                 storage.name, storage.indices, named[s]));
  }
}

}  // namespace rehearse::program
