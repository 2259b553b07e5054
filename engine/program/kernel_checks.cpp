#include "engine/program/kernel_checks.h"

#include <fmt/format.h>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/program/low_rank.h"
#include "engine/program/packets.h"

namespace rehearse::program {
namespace {

void check_observation(const Program& p, const Role& role, Id o, const Kernel& kernel) {
  const Op& op = role.ops[o];
  const Ref &source = *find(op, Slot::source), &target = *find(op, Slot::target);
  if (source.layout.partial) refuse(p, role, o, "observes a gradient that is still a partial sum");
  const std::int64_t entries = elements_of(p, role, source),
                     wanted = 1 + 2 * observed_entries(entries, kernel.stride);
  if (elements_of(p, role, target) != wanted)
    refuse(p, role, o,
           fmt::format("the observation of {} entries at stride {} takes {} numbers, '{}' has {}",
                       entries, kernel.stride, wanted, role.views[target.view].name,
                       elements_of(p, role, target)));
}

/// Checks that packets and entries fit each other.
void check_packets(const Program& p, const Role& role, Id o, const Kernel& kernel) {
  const Op& op = role.ops[o];
  const bool packs = kernel.kind == KernelKind::quantise;
  const Ref &entries = *find(op, packs ? Slot::source : Slot::target),
            &packets = *find(op, packs ? Slot::target : Slot::source);
  const std::int64_t bytes = quantised_bytes(kernel), have = bytes_of(p, role, packets);
  const std::int64_t count = have / bytes;
  const bool sums = !packs && entries.layout.shard != 0;
  if (have % bytes != 0 || elements_of(p, role, entries) != (sums ? 1 : count) * kernel.keep)
    refuse(p, role, o,
           fmt::format("packets of {} bytes with {} entries each: {} bytes do not hold {} entries",
                       bytes, kernel.keep, have, elements_of(p, role, entries)));
  for (const Slot slot : {Slot::residual, Slot::sum_residual})
    if (const Ref* residual = find(op, slot);
        residual != nullptr && elements_of(p, role, *residual) != elements_of(p, role, entries))
      refuse(p, role, o, "the residual has other entries than the source");
}

/// Checks the operands of a kernel that averages weights: all but a share have equally many
/// elements, and all are f32.
void check_averaging(const Program& p, const Role& role, Id o) {
  const Op& op = role.ops[o];
  const std::int64_t elements = elements_of(p, role, *find(op, Slot::target));
  for (const Ref& ref : op.refs) {
    const std::string& name = role.views[ref.view].name;
    if (elements_of(p, role, ref) != (ref.slot == Slot::share ? 1 : elements))
      refuse(p, role, o, fmt::format("'{}' has another size than the result", name));
    if (role.storages[role.views[ref.view].storage].dtype != DType::f32)
      refuse(p, role, o, fmt::format("'{}' must be f32", name));
  }
}

/// Checks the types of a secure sum's operands: messages are bytes, levels i32, numbers f32.
void check_secure(const Program& p, const Role& role, Id o, const Kernel& kernel) {
  const Op& op = role.ops[o];
  if (p.secure.neighbours == 0) refuse(p, role, o, "the program says no secure sum");
  const bool numbers = kernel.kind == KernelKind::mask || kernel.kind == KernelKind::unmask;
  const auto type_of = [&](Slot slot) {
    return numbers                ? (slot == Slot::message                                         ? DType::u8
                                     : (slot == Slot::source) == (kernel.kind == KernelKind::mask) ? DType::f32
                                                                                                   : DType::i32)
           : slot == Slot::source ? DType::i32
                                  : DType::u8;
  };
  for (const Ref& ref : op.refs)
    if (const DType type = type_of(ref.slot);
        role.storages[role.views[ref.view].storage].dtype != type)
      refuse(p, role, o, fmt::format("'{}' must be {}", role.views[ref.view].name, name_of(type)));
  if (numbers && elements_of(p, role, *find(op, Slot::source)) !=
                     elements_of(p, role, *find(op, Slot::target)))
    refuse(p, role, o, "as many levels as numbers");
}

}  // namespace

void refuse(const Program& p, const Role& role, Id op, const std::string& why) {
  throw ProgramError(fmt::format("role {}: {}\n> {}", role.name, why, to_text(p, role, op)));
}

void check_kernel(const Program& p, const Role& role, Id o, const Kernel& kernel) {
  const auto needs = [&](std::initializer_list<Slot> slots) {
    for (const Slot slot : slots)
      if (find(role.ops[o], slot) == nullptr)
        refuse(p, role, o, fmt::format("no {} operand", name_of(slot)));
  };
  switch (kernel.kind) {
    case KernelKind::observe:
      needs({Slot::source, Slot::target});
      return check_observation(p, role, o, kernel);
    case KernelKind::quantise:
    case KernelKind::dequantise:
      needs({Slot::source, Slot::target});
      return check_packets(p, role, o, kernel);
    case KernelKind::outer_step:
      if (find(role.ops[o], Slot::share) == nullptr) needs({Slot::outer_moment});
      [[fallthrough]];
    case KernelKind::drift:
      needs({Slot::anchor});
      [[fallthrough]];
    case KernelKind::weigh:
    case KernelKind::mix:
      needs({Slot::source, Slot::target});
      return check_averaging(p, role, o);
    case KernelKind::draw:
      return needs({Slot::target});
    case KernelKind::advertise:
      needs({Slot::target});
      return check_secure(p, role, o, kernel);
    case KernelKind::relay_keys:
    case KernelKind::share_secrets:
    case KernelKind::relay_shares:
    case KernelKind::open_shares:
      needs({Slot::message, Slot::target});
      return check_secure(p, role, o, kernel);
    case KernelKind::tell_stayed:
      needs({Slot::source, Slot::target});
      return check_secure(p, role, o, kernel);
    case KernelKind::mask:
    case KernelKind::unmask:
      needs({Slot::message, Slot::source, Slot::target});
      return check_secure(p, role, o, kernel);
    case KernelKind::momentum:
      needs({Slot::target, Slot::moment1});
      if (elements_of(p, role, *find(role.ops[o], Slot::target)) !=
          elements_of(p, role, *find(role.ops[o], Slot::moment1)))
        refuse(p, role, o, "the moment has other entries than the target");
      return;
    case KernelKind::project:
    case KernelKind::orthonormalise:
    case KernelKind::project_back:
    case KernelKind::expand:
      if (const std::string why = wrong_factors(p, role, role.ops[o]); !why.empty())
        refuse(p, role, o, why);
      return;
    default:
      return;
  }
}

}  // namespace rehearse::program
