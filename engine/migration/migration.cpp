// Builds the migration program. Each rank has lanes for pack, send, receive and unpack. All lanes
// follow the common order of messages (migration_traffic.h). Every wait then points from a later
// message to an earlier one, so the program cannot deadlock.
#include "engine/migration/migration.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "engine/base/errors.h"
#include "engine/methods/passes/passes.h"
#include "engine/migration/migration_traffic.h"
#include "engine/program/role_builder.h"
#include "engine/tensors/tensor_map.h"

namespace rehearse::migration {
namespace {

// The largest number of packets that a rank holds at a time, for each direction. It limits the
// memory for packets.
constexpr std::size_t packets_under_way = 2;

class Migrator {
 public:
  Migrator(const link::LinkedProgram& from, const link::LinkedProgram& to,
           const model::ModelSpec& model, const MigrationOptions& options)
      : from_(from), to_(to), model_(model), options_(options) {
    const int world = from.program.world_size;
    if (to.program.world_size != world)
      throw InputError(fmt::format("a plan for {} ranks cannot follow one for {}",
                                   to.program.world_size, world));
    for (const link::LinkedProgram* linked : {&from, &to})
      for (const program::Role& role : linked->program.roles)
        if (role.free_running)
          throw ProgramError(fmt::format(
              "method {}: role {} has no step in common with the others at which it could move",
              linked->program.method, role.name));
    plays_[true] = options.played, plays_[false] = options.plays;
    for (auto& [side, plays] : plays_)
      for (Id rank = 0; plays.size() < static_cast<std::size_t>(world); ++rank)
        plays.push_back(rank);
    program_ = {.method = "migration", .mesh = {{"rank", world}}, .world_size = world};
    channel_ = channel(program_, "migration");
    out_.states.resize(static_cast<std::size_t>(world));
    for (int rank = 0; rank < world; ++rank)
      roles_.emplace_back(fmt::format("rank{}", rank), std::vector<Id>{static_cast<Id>(rank)});
  }

  Migration run() {
    const std::vector<OwnedRect> old_parts = parts(true), new_parts = parts(false);
    PieceMoves moves = moves_between(old_parts, new_parts, options_.distance, packet_elements());
    traffic_ = traffic_of(std::move(moves), static_cast<Id>(roles_.size()), packet_elements());
    out_.sent_bytes = traffic_.sent_bytes, out_.kept_bytes = traffic_.kept_bytes;
    for (Id rank = 0; rank < roles_.size(); ++rank) write_role(rank);
    for (program::RoleBuilder& role : roles_) program_.roles.push_back(role.take());
    out_.program = methods::infer_waits({std::move(program_)});
    for (Id rank = 0; rank < out_.states.size(); ++rank)
      out_.states[rank].resize(out_.program.roles[rank].storages.size());
    return std::move(out_);
  }

 private:
  std::int64_t packet_elements() const {
    return std::max<std::int64_t>(
        1, static_cast<std::int64_t>(options_.packet.value / size_of(program::DType::f32)));
  }

  /// Notes the tensors that a side splits over tensor-parallel ranks. All others count as one row.
  void find_split(const std::vector<std::vector<tensors::TensorPart>>& by_rank) {
    for (const auto& parts : by_rank)
      for (const tensors::TensorPart& part : parts)
        if (part.key.tp_size > 1) split_.insert(part.key.tensor);
  }

  std::vector<std::vector<tensors::TensorPart>> parts_of_side(bool old) const {
    const link::LinkedProgram& linked = old ? from_ : to_;
    const std::vector<tensors::RankMap> maps = tensors::map_tensors(linked, model_);
    std::vector<std::vector<tensors::TensorPart>> by_rank;
    for (Id rank = 0; rank < maps.size(); ++rank) {
      by_rank.push_back(parts_of(linked, model_, maps, rank));
      // Takes weights only from storages that an Update writes: other copies may be older.
      if (old)
        std::erase_if(by_rank.back(), [&](const tensors::TensorPart& part) {
          return part.key.kind == tensors::StorageKind::param &&
                 !maps[rank].storages[part.storage].updated;
        });
    }
    return by_rank;
  }

  std::vector<OwnedRect> parts(bool old) {
    if (sides_.empty()) {
      for (const bool side : {true, false}) sides_[side] = parts_of_side(side);
      for (const auto& [side, by_rank] : sides_) find_split(by_rank);
      for (const model::ParamGroup& group : model_.groups)
        for (const model::TensorSpec& spec : group.tensors)
          specs_[spec.name] = {&spec, group.split};
    }
    const program::Program& p = (old ? from_ : to_).program;
    const std::vector<Id>& role_of = (old ? from_ : to_).role_of;
    std::vector<OwnedRect> out;
    for (Id process = 0; process < roles_.size(); ++process) {
      const Id rank = plays_[old][process];
      const program::Role& role = p.roles[role_of[rank]];
      for (Id s = 0; s < role.storages.size(); ++s)
        for (int age = 1;
             role.storages[s].life == program::Life::state && age <= role.storages[s].versions;
             ++age)
          declare(process, role, s, age, old);
      for (tensors::TensorPart part : sides_[old][rank]) {
        const program::Storage& storage = role.storages[part.storage];
        if (part.key.kind == tensors::StorageKind::other) {
          // State of this rank alone: it moves only to a storage of the same name on this rank.
          part.key.tensor = storage.name;
          part.key.copy = static_cast<int>(process);
        }
        const auto spec = specs_.find(part.key.tensor);
        const bool known = spec != specs_.end() && part.key.kind != tensors::StorageKind::other;
        for (HeldRect held :
             rectangles(part, known ? spec->second.first : nullptr, known && spec->second.second,
                        !split_.contains(part.key.tensor))) {
          held.rank = process;
          held.storage = declare(process, role, part.storage, part.key.age, old);
          held.dtype = storage.dtype;
          out.push_back({part.key, held});
        }
      }
    }
    return out;
  }

  /// The storage of the migration's role for version `age` of a state.
  Id declare(Id process, const program::Role& role, Id storage, int age, bool old) {
    const program::Storage& state = role.storages[storage];
    program::RoleBuilder& builder = roles_[process];
    const Id view = builder.storage({.name = fmt::format("{}.{}{}", old ? "old" : "new", state.name,
                                                         age > 1 ? fmt::format(".age{}", age) : ""),
                                     .life = program::Life::state,
                                     .dtype = state.dtype,
                                     .elements = state.elements,
                                     .place = state.place});
    const Id id = builder.role().views[view].storage;
    std::vector<MigratedState>& states = out_.states[process];
    if (states.size() <= id) states.resize(id + 1);
    states[id] = {.old = old, .storage = storage, .age = age};
    return id;
  }

  /// A reference to elements [begin, end) of a storage.
  program::Ref ref(Id rank, Id storage, program::Slot slot, program::Mode mode, std::int64_t begin,
                   std::int64_t end, int age) {
    program::RoleBuilder& role = roles_[rank];
    const program::Storage& of = role.role().storages[storage];
    const std::string name =
        begin == 0 && end == of.elements ? of.name : fmt::format("{}:{}-{}", of.name, begin, end);
    return {.view = role.view({.name = name, .storage = storage, .begin = begin, .end = end}),
            .slot = slot,
            .mode = mode,
            .age = age};
  }
  /// The interval of the old storage that contains a piece; the piece may be only some of its
  /// columns.
  program::Ref source(const PieceCopy& c) {
    return ref(c.from, c.source, program::Slot::source, program::Mode::read, c.source_begin,
               c.source_begin + (c.rows - 1) * c.source_pitch + c.run, 1);
  }
  bool on_host(Id rank, Id storage) const {
    return roles_[rank].role().storages[storage].place == program::Place::host;
  }
  /// An interval of the device that takes the place of one in host memory, which only `copy` reads
  /// and writes.
  program::Ref beside(Id rank, const program::Ref& of) {
    const program::Role& role = roles_[rank].role();
    const program::View& view = role.views[of.view];
    const std::int64_t elements = view.end - view.begin;
    const Id storage = value(rank, fmt::format("device.{}", view.name),
                             role.storages[view.storage].dtype, elements);
    return ref(rank, storage, of.slot, program::Mode::write, 0, elements, 0);
  }
  void copy(Id rank, const char* lane, program::Ref from, program::Ref to) {
    from.slot = program::Slot::source, from.mode = program::Mode::read;
    to.slot = program::Slot::target;
    roles_[rank].op(lane, program::Copy{}, {from, to});
  }
  /// The source of a piece on the device.
  program::Ref source_on_device(const PieceCopy& c, const char* lane) {
    program::Ref from = source(c);
    if (!on_host(c.from, c.source)) return from;
    program::Ref to = beside(c.from, from);
    copy(c.from, lane, from, to);
    to.mode = program::Mode::read;
    return to;
  }
  /// Calls `write` with the target or, if that is in host memory, with an interval of the device,
  /// which it then copies there.
  template <class F>
  void to_target(Id rank, Id storage, const program::Ref& target, F write) {
    if (!on_host(rank, storage)) return write(target);
    const program::Ref on_device = beside(rank, target);
    write(on_device);
    copy(rank, "unpack", on_device, target);
  }
  /// Copies a piece out of its interval; with a stride if it has several rows.
  static program::Kernel take(const PieceCopy& c) {
    if (c.rows == 1) return {.kind = program::KernelKind::cast};
    return {.kind = program::KernelKind::cast,
            .keep = c.run,
            .stride = narrow<int>(c.source_pitch, "the stride of a copy")};
  }
  program::Ref target(const PieceCopy& c) {
    return ref(c.to, c.target, program::Slot::target,
               c.turn > 0 ? program::Mode::add : program::Mode::write, c.target_begin,
               c.target_begin + c.elements(), 0);
  }
  /// A new storage for a packet or an intermediate value.
  Id value(Id rank, const std::string& name, program::DType type, std::int64_t elements) {
    program::RoleBuilder& role = roles_[rank];
    return role.role()
        .views[role.storage({.name = name, .dtype = type, .elements = elements})]
        .storage;
  }
  Id packet(const MigrationMessage& m, bool sender) {
    return value(sender ? m.from : m.to,
                 fmt::format("{}{}.{}", sender ? "to" : "from", sender ? m.to : m.from, m.ordinal),
                 m.wire, m.elements);
  }
  program::Ref in_packet(Id rank, Id storage, std::size_t piece, program::Slot slot,
                         program::Mode mode) {
    const std::int64_t begin = traffic_.offset_of[piece];
    return ref(rank, storage, slot, mode, begin, begin + traffic_.moves.copies[piece].elements(),
               0);
  }

  /// The piece at the receiving rank: in its packet, or in its old storage if it was there already.
  program::Ref arrived(std::size_t piece) {
    const PieceCopy& c = traffic_.moves.copies[piece];
    if (c.from == c.to) return source_on_device(c, "unpack");
    const Id storage =
        packet(traffic_.messages[static_cast<std::size_t>(traffic_.turn_of[piece])], false);
    return in_packet(c.to, storage, piece, program::Slot::source, program::Mode::read);
  }

  void write_unpack(Id rank, const Unpack& op) {
    program::RoleBuilder& role = roles_[rank];
    if (op.assembly < 0) {
      const PieceCopy& c = traffic_.moves.copies[op.piece];
      const bool stays = c.from == c.to;
      if (stays && c.dense() && c.source_type == c.target_type && on_host(c.from, c.source) &&
          on_host(c.to, c.target))
        return copy(rank, "unpack", source(c), target(c));
      const program::Ref from = arrived(op.piece);
      to_target(rank, c.target, target(c), [&](const program::Ref& to) {
        role.op("unpack", stays ? take(c) : program::Kernel{.kind = program::KernelKind::cast},
                {from, to});
      });
      return;
    }
    const RowAssembly& assembly = traffic_.moves.assemblies[static_cast<std::size_t>(op.assembly)];
    std::vector<program::Ref> refs;
    for (const std::size_t i : assembly.pieces) {
      const PieceCopy& c = traffic_.moves.copies[i];
      if (c.from != c.to || c.rows == 1) {
        refs.push_back(arrived(i));
        continue;
      }
      const Id rows = value(rank, fmt::format("own.{}", i), c.source_type, c.elements());
      role.op("unpack", take(c),
              {source_on_device(c, "unpack"),
               ref(rank, rows, program::Slot::target, program::Mode::write, 0, c.elements(), 0)});
      refs.push_back(
          ref(rank, rows, program::Slot::source, program::Mode::read, 0, c.elements(), 0));
    }
    const program::Ref target =
        ref(rank, assembly.target, program::Slot::target,
            assembly.turn > 0 ? program::Mode::add : program::Mode::write, assembly.begin,
            assembly.begin + assembly.rows * assembly.width, 0);
    to_target(rank, assembly.target, target, [&](const program::Ref& to) {
      refs.push_back(to);
      role.op("unpack",
              program::Kernel{.kind = program::KernelKind::cast,
                              .stride = narrow<int>(assembly.width, "the width of a row")},
              std::move(refs));
    });
  }

  void write_role(Id rank) {
    program::RoleBuilder& role = roles_[rank];
    for (const char* lane : {"unpack", "pack", "send", "recv"}) role.lane(lane);
    auto next = traffic_.unpacks[rank].begin();
    Id unpacked = none;  // the last unpack op so far
    const auto unpack_until = [&](int turn) {
      for (; next != traffic_.unpacks[rank].end() && next->turn <= turn; ++next) {
        write_unpack(rank, *next);
        unpacked = static_cast<Id>(role.role().ops.size() - 1);
      }
    };
    unpack_until(-1);
    std::vector<Id> sends, done;  // by packet: its send op; the last op that reads it
    for (const std::size_t turn : traffic_.of_rank[rank]) {
      const MigrationMessage& m = traffic_.messages[turn];
      if (m.from == rank)
        send(m, sends);
      else
        receive(m, done);
      unpack_until(static_cast<int>(turn));
      if (m.to == rank && !m.without_packet) done.push_back(unpacked);
    }
  }

  void send(const MigrationMessage& m, std::vector<Id>& sends) {
    program::RoleBuilder& role = roles_[m.from];
    const program::Send work{.channel = channel_, .peer = m.to};
    // Limits the number of packets that are in memory.
    const auto throttled = [&](Id op) {
      if (sends.size() >= packets_under_way)
        role.throttle(op, sends[sends.size() - packets_under_way]);
    };
    if (m.without_packet) {
      const PieceCopy& c = traffic_.moves.copies[m.pieces.front()];
      const program::Ref from = source_on_device(c, "pack");
      const bool copied = on_host(c.from, c.source);
      if (copied) throttled(static_cast<Id>(role.role().ops.size() - 1));
      const Id op = role.op("send", work, {from});
      if (copied) sends.push_back(op);
      return;
    }
    const Id storage = packet(m, true);
    for (const std::size_t i : m.pieces) {
      const program::Ref from = source_on_device(traffic_.moves.copies[i], "pack");
      throttled(role.op(
          "pack", take(traffic_.moves.copies[i]),
          {from, in_packet(m.from, storage, i, program::Slot::target, program::Mode::write)}));
    }
    sends.push_back(role.op(
        "send", work,
        {ref(m.from, storage, program::Slot::source, program::Mode::read, 0, m.elements, 0)}));
  }

  void receive(const MigrationMessage& m, const std::vector<Id>& done) {
    program::RoleBuilder& role = roles_[m.to];
    const program::Recv work{.channel = channel_, .peer = m.from};
    if (m.without_packet) {
      const PieceCopy& c = traffic_.moves.copies[m.pieces.front()];
      to_target(m.to, c.target, target(c),
                [&](const program::Ref& to) { role.op("recv", work, {to}); });
      return;
    }
    const Id op = role.op("recv", work,
                          {ref(m.to, packet(m, false), program::Slot::target, program::Mode::write,
                               0, m.elements, 0)});
    if (done.size() < packets_under_way) return;
    if (const Id before = done[done.size() - packets_under_way]; before != none)
      role.throttle(op, before);
  }

  const link::LinkedProgram& from_;
  const link::LinkedProgram& to_;
  const model::ModelSpec& model_;
  const MigrationOptions& options_;
  std::map<bool, std::vector<Id>> plays_ = {};  // by side: true is the old program
  program::Program program_ = {};
  Id channel_ = none;
  std::vector<program::RoleBuilder> roles_ = {};
  std::map<bool, std::vector<std::vector<tensors::TensorPart>>> sides_ = {};
  std::map<std::string, std::pair<const model::TensorSpec*, bool>> specs_ = {};
  std::set<std::string> split_ = {};
  MigrationTraffic traffic_ = {};
  Migration out_ = {};
};

}  // namespace

Migration migrate(const link::LinkedProgram& from, const link::LinkedProgram& to,
                  const model::ModelSpec& model, const MigrationOptions& options) {
  return Migrator(from, to, model, options).run();
}

}  // namespace rehearse::migration
