// Checkpoints behind training (CheckFreq: Mohan et al., FAST 2021; Gemini: Wang et al., SOSP 2023,
// section 2): every so many-th step, each rank copies its state to host memory and writes the copy
// to its part of a checkpoint.
//
//   compute  ... update s | forward, backward s+1 ... | update s+1
//   copy              | snapshot |                      waits for the snapshot, no more
//   save                         | write to disk ................... |
//                                  the next snapshot waits for the end of the write
//
// Replicas hold the same weights and moments, so each of them saves an equal part. State that
// replicas do not share (residuals, thresholds) is saved whole by each.
#include <fmt/format.h>

#include "engine/methods/passes/passes.h"
#include "engine/program/role_builder.h"

namespace rehearse::methods {
namespace {

using program::Ref;
using program::Role;

/// What a role's ops do with a state storage.
struct StateUse {
  program::Axes copies = 0;     // axes of gradients along which ranks have it equal
  program::Layout layout = {};  // that the last op which writes it leaves
  int shift = 0;                // of that op
};

std::vector<StateUse> uses_of(const Role& role, program::Axes data) {
  std::vector<StateUse> uses(role.storages.size());
  for (const program::Op& op : role.ops)
    for (const Ref& ref : op.refs) {
      if (ref.mode == program::Mode::read) continue;
      StateUse& use = uses[role.views[ref.view].storage];
      use.layout = ref.layout, use.shift = op.shift;
      // What kernels write (residuals, thresholds) is each rank's own, but for outer steps.
      const auto* kernel = std::get_if<program::Kernel>(&op.work);
      const bool equal = std::holds_alternative<program::Update>(op.work) ||
                         std::holds_alternative<program::Copy>(op.work) ||
                         std::holds_alternative<program::Collective>(op.work) ||
                         (kernel != nullptr && kernel->kind == program::KernelKind::outer_step);
      use.copies = equal ? data & ~(ref.layout.shard | ref.layout.own) : 0;
    }
  return uses;
}

class Saver {
 public:
  Saver(const program::Program& program, Role& role, const plan::Checkpoints& how)
      : program_(program), role_(role), how_(how), data_(gradient_axes(program)) {
    std::int64_t in_mesh = 1;
    for (const program::Axis& axis : program.mesh) in_mesh *= axis.size;
    for (const Id rank : role.ranks)
      if (rank >= in_mesh) data_ = 0;  // a server
  }

  void add() {
    const std::vector<StateUse> uses = uses_of(role_, data_);
    copy_lane_ = lane("copy");
    const Id save_lane = lane("save");
    int shift = 0;
    for (Id s = 0; s < uses.size(); ++s) {
      const program::Storage storage = role_.storages[s];
      if (storage.life != program::Life::state) continue;
      const std::int64_t parts = size_of(program_, uses[s].copies);
      const std::int64_t equal = storage.elements / parts * parts;
      copy(s, 0, equal, uses[s].copies, uses[s]);
      copy(s, equal, storage.elements, 0, uses[s]);
      shift = std::max(shift, uses[s].shift);
    }
    if (saved_.empty()) return;
    role_.ops.push_back({.lane = save_lane,
                         .work = program::Save{how_.to, how_.group},
                         .refs = std::move(saved_),
                         .shift = shift,
                         .when = {.every = how_.every}});
  }

 private:
  Id lane(const char* name) {
    role_.lanes.push_back({.name = name});
    return static_cast<Id>(role_.lanes.size() - 1);
  }
  Id view(const std::string& name, Id storage, std::int64_t begin, std::int64_t end,
          program::Axes slice) {
    role_.views.push_back(
        {.name = name, .storage = storage, .begin = begin, .end = end, .slice = slice});
    return static_cast<Id>(role_.views.size() - 1);
  }

  /// Copies [begin, end) of all versions of a state storage; of a sliced one, this rank's part.
  void copy(Id state, std::int64_t begin, std::int64_t end, program::Axes slice,
            const StateUse& use) {
    if (begin == end) return;
    const program::Storage& of = role_.storages[state];
    const int versions = of.versions;
    const std::string name = fmt::format("{}.{}", of.name,
                                         slice != 0  ? "part"
                                         : begin > 0 ? "rest"
                                                     : "whole");
    const std::int64_t elements = (end - begin) / (slice == 0 ? 1 : size_of(program_, slice));
    program::Storage snapshot{.name = "saved." + name,
                              .life = program::Life::buffer,
                              .dtype = of.dtype,
                              .elements = elements,
                              .indices = versions,
                              .place = program::Place::host};
    const Id from = view("save." + name, state, begin, end, slice);
    role_.storages.push_back(std::move(snapshot));
    const Id to = view("saved." + name, static_cast<Id>(role_.storages.size() - 1), 0, elements, 0);
    for (int age = 0; age < versions; ++age) {
      role_.ops.push_back({.lane = copy_lane_,
                           .work = program::Copy{},
                           .refs = {program::ref(from, program::Slot::source, program::Mode::read,
                                                 0, age, use.layout),
                                    program::ref(to, program::Slot::target, program::Mode::write,
                                                 age, 0, use.layout)},
                           .shift = use.shift,
                           .when = {.every = how_.every}});
      saved_.push_back(
          program::ref(to, program::Slot::source, program::Mode::read, age, 0, use.layout));
    }
  }

  const program::Program& program_;
  Role& role_;
  const plan::Checkpoints& how_;
  program::Axes data_ = 0;
  Id copy_lane_ = none;
  std::vector<Ref> saved_ = {};
};

}  // namespace

LoweredProgram save_states(LoweredProgram lowered, const plan::Checkpoints& how) {
  if (how.every > 0)
    for (Role& role : lowered.program.roles) Saver(lowered.program, role, how).add();
  return lowered;
}

}  // namespace rehearse::methods
