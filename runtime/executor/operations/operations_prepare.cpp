// Prepares the ops of a role: operands, blocks, communicators, mailboxes.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/link/workspace.h"
#include "engine/model/context.h"
#include "engine/model/tensor_split.h"
#include "runtime/executor/lanes/lane_runner.h"
#include "runtime/executor/operations/prepared.h"

namespace rehearse::runtime {
namespace {

// Losses are kept for this many steps: more than can lie between the head's backward of a step and
// the end of that step on the compute lane.
constexpr std::size_t steps_under_way = 64;

/// Ranks of the group of `channel` that contains `rank`; all ranks for a point-to-point channel.
std::vector<Id> members_of(const program::Program& program, const program::Channel& channel,
                           Id rank) {
  if (channel.group.axes == 0 && channel.group.colour.empty()) {
    std::vector<Id> all(program.world_size);
    std::iota(all.begin(), all.end(), Id{0});
    return all;
  }
  for (std::vector<Id>& group : groups_of(program, channel))
    if (std::find(group.begin(), group.end(), rank) != group.end()) return group;
  throw ProgramError(
      fmt::format("rank {} uses channel {} but is in none of its groups", rank, channel.name));
}

/// The role whose answers tell free-running ranks when to end: one of several servers, because each
/// server sees another order of gradients. It is the last one, whose weights a worker's next step
/// needs first, so that nothing of that step has run before the answer came. `none`: no role
/// answers.
Id ending_role(const program::Program& program) {
  Id last = none;
  for (Id r = 0; r < program.roles.size(); ++r)
    for (const program::Op& op : program.roles[r].ops)
      if (const auto* put = std::get_if<program::Put>(&op.work);
          put != nullptr && put->reply != none)
        last = r;
  return last;
}

/// How many lanes before this one have collectives on the channel. Ranks of several roles meet on
/// lanes that are equal in this, whatever other lanes their roles have.
int lanes_before(const program::Role& role, Id lane, Id channel) {
  std::vector<bool> uses(role.lanes.size());
  for (const program::Op& op : role.ops)
    if (const auto* collective = std::get_if<program::Collective>(&op.work))
      if (collective->channel == channel) uses[op.lane] = true;
  return static_cast<int>(std::count(uses.begin(), uses.begin() + lane, true));
}

}  // namespace

Operations::Operations(const link::LinkedProgram& linked, const model::ModelSpec& model,
                       const job::Train& train, plan::Optimizer optimizer, int global_batch,
                       Id rank, const tensors::RankMap& map, Network& network, RankMemory& memory,
                       const Wiring& wiring)
    : linked_(linked),
      program_(linked.program),
      model_(model),
      train_(train),
      optimizer_(optimizer),
      global_batch_(global_batch),
      rank_(rank),
      role_id_(linked.role_of[rank]),
      role_(program_.roles[role_id_]),
      map_(map),
      network_(network),
      memory_(memory),
      accelerator_(memory.device().accelerator()),
      wiring_(wiring),
      context_(tensors::place_along(program_, "cp", rank)),
      norms_(model::tensor_split(program_).norms(model.software)),
      blocks_(model.segments.size()),
      parted_(model.segments.size()),
      communicators_(role_.lanes.size()),
      mailboxes_(program_.channels.size()),
      last_sender_(program_.channels.size(), none),
      ends_others_(role_id_ == ending_role(program_)),
      loss_steps_(steps_under_way, -1),
      losses_(host_memory(steps_under_way * sizeof(StepLoss))),
      copied_skipped_(host_memory(sizeof(SkipCount))) {
  if (accelerator_ != nullptr)
    losses_there_ = memory.device().allocate(steps_under_way * sizeof(StepLoss));
  for (auto& lane : communicators_) lane.resize(program_.channels.size());
  find_samples();
  for (std::size_t op = 0; op < role_.ops.size(); ++op) prepare(static_cast<Id>(op));
  prepare_numbers();
  // One after the other by their names, on all ranks, so two ranks never wait for each other.
  for (const auto& [name, wire] : wires_) wire->connect();
}

Operations::~Operations() = default;

void Operations::find_samples() {
  // The samples of the global batch are dealt to data-parallel places in order: this rank's samples
  // begin after those of all earlier places.
  if (link::samples_of(role_).empty()) return;  // a server, which has no place on the mesh
  const tensors::GroupPlace mine = tensors::place_of(program_, data_axes(program_), rank_);
  std::vector<std::int64_t> by_place(mine.count);
  for (Id rank = 0; rank < linked_.role_of.size(); ++rank) {
    const std::vector<int> samples = link::samples_of(program_.roles[linked_.role_of[rank]]);
    if (!samples.empty())
      by_place[tensors::place_of(program_, data_axes(program_), rank).index] =
          std::accumulate(samples.begin(), samples.end(), std::int64_t{0});
  }
  const std::int64_t tokens = model_.seq_len / context_.count;
  // Where an op runs while it is issued, batches are read again when another step needs them. A
  // device that runs behind may still read those of two steps before this one, and of as many more
  // as ops are shifted by.
  std::size_t staged_steps = 1;
  if (memory_.device().asynchronous()) {
    int shift = 0;
    for (const program::Op& op : role_.ops)
      if (std::holds_alternative<program::Compute>(op.work)) shift = std::max(shift, int{op.shift});
    staged_steps = static_cast<std::size_t>(run_ahead + 1 + shift);
  }
  if (context_.count > 1)
    for (const model::TokenRun& run :
         model::tokens_of(model_.seq_len, context_.count, context_.index, cut_of(program_)))
      for (std::int64_t i = 0; i < run.size; ++i) positions_.push_back(run.begin + i);
  std::int64_t first =
      std::accumulate(by_place.begin(), by_place.begin() + mine.index, std::int64_t{0});
  for (const int samples : link::samples_of(role_)) {
    MicroBatch& m = microbatches_.emplace_back();
    m.first = first;
    m.samples = samples;
    m.staged.resize(staged_steps);
    for (auto& [key, batch] : m.staged) {
      batch.tokens = host_tensor({samples, tokens});
      batch.labels = host_tensor({samples, tokens});
      batch.positions = positions_;
    }
    if (context_.count > 1) m.whole.resize(2 * static_cast<std::size_t>(samples * model_.seq_len));
    first += samples;
  }
  for (const program::Op& op : role_.ops)
    if (const program::Ref* grad = find(op, program::Slot::grad);
        grad != nullptr && std::holds_alternative<program::Compute>(op.work))
      own_gradients_ |= grad->layout.own != 0;
}

void Operations::begin_run(const BatchSource& feed) {
  feed_ = feed;
  memory_.forget_last_users();
  for (const auto& op : ops_)
    for (const Operand& dying : op->dies) memory_.add_last_user(dying);
  memory_.drop_values();
  if (feed.training && linked_.mailboxes) open_mailboxes();
  if (feed.training && role_.round.steps > 0) rounds_.go_on(now());
}

void Operations::prepare(Id id) {
  auto p = std::make_unique<Prepared>();
  p->op = &role_.ops[id];
  p->id = id;
  for (const program::Ref& ref : p->op->refs) p->operands.push_back(memory_.operand(ref));
  for (const program::Ref& ref : linked_.roles[role_id_].ops[id].dies)
    p->dies.push_back(memory_.operand(ref));
  std::visit(
      program::overloaded{
          [&](const program::Compute& compute) { prepare_compute(*p, compute); },
          [&](const program::Kernel& kernel) { prepare_kernel(*p, kernel); },
          [&](const program::Update&) { prepare_update(*p); },
          [&](const program::Collective& collective) { prepare_collective(*p, collective); },
          [&](const program::Send& send) { prepare_exchange(*p, send.channel, send.peer); },
          [&](const program::Recv& recv) { prepare_exchange(*p, recv.channel, recv.peer); },
          [&](const program::Put& put) {
            p->mailbox = put.channel;
            const program::Role& peer = program_.roles[put.peer];
            p->peer_rank = wiring_.process(peer.ranks[linked_.place_of[rank_] % peer.ranks.size()]);
          },
          [&](const program::Take& take) { p->mailbox = take.channel; },
          [](const program::Copy&) {},
          [](const program::Save&) {},
          [](const program::Pause&) {},
          [](const program::Issue&) { throw ProgramError("an op of a prediction cannot run"); },
      },
      p->op->work);
  p->on_host = accelerator_ != nullptr && computes_on_host(*p);
  ops_.push_back(std::move(p));
}

void Operations::prepare_compute(Prepared& p, const program::Compute& compute) {
  const std::vector<Id>& groups = model_.segments.at(compute.segment).groups;
  const std::vector<Id> computed = gradients_of(model_, compute.segment, compute.pass);
  // A view may end in padding. The block gets the parameter group without the padding.
  for (const program::Slot slot : {program::Slot::param, program::Slot::grad}) {
    const std::vector<Id>& of_slot = slot == program::Slot::param ? groups : computed;
    std::size_t position = 0;
    for (std::size_t i = 0; i < p.operands.size(); ++i)
      if (p.operands[i].slot == slot) {
        const Operand whole = p.operands[i];
        const std::int64_t elements =
            elements_of(model_.groups[of_slot.at(position++)], map_.tp_size);
        p.operands[i] = memory_.operand(p.op->refs[i], 0, elements);
        if (slot == program::Slot::grad && whole.mode == program::Mode::write &&
            whole.elements > elements)
          p.padding.push_back(memory_.operand(p.op->refs[i], elements, whole.elements - elements));
      }
  }
  p.grads.resize(groups.size());
  std::size_t position = 0;
  for (const Operand& operand : p.operands) {
    if (operand.slot == program::Slot::param) p.params.push_back(&operand);
    if (operand.slot == program::Slot::grad)
      p.grads[static_cast<std::size_t>(std::ranges::find(groups, computed.at(position++)) -
                                       groups.begin())] = &operand;
  }
  if (p.params.size() != groups.size() && compute.part != program::Part::attend)
    throw ProgramError(fmt::format("role {}: op {} has {} parameter operands, segment {} has {}",
                                   role_.name, p.id, p.params.size(),
                                   model_.segments[compute.segment].name, groups.size()));
  p.param_tensors.resize(p.params.size());
  p.grad_tensors.resize(p.grads.size());
  p.accumulate = std::make_unique<bool[]>(p.grads.size());
  for (std::size_t i = 0; i < p.grads.size(); ++i)
    p.accumulate[i] = p.grads[i] != nullptr && p.grads[i]->mode == program::Mode::add;
  if (compute.part != program::Part::whole) return prepare_part(p, compute);
  std::unique_ptr<models::Block>& block = blocks_[compute.segment];
  if (block == nullptr)
    block = models::make_block(model_, compute.segment, map_.tp_size, map_.tp_rank,
                               p.params.front()->dtype, norms_);
  p.block = block.get();
}

Communicator& Operations::wire(const std::string& name, const std::vector<Id>& ranks) {
  std::unique_ptr<Communicator>& c = wires_[name];
  if (c == nullptr) c = accelerator_->communicator(name, wiring_.processes(ranks));
  return *c;
}

Communicator& Operations::communicator(Id lane, Id channel) {
  std::unique_ptr<Communicator>& c = communicators_[lane][channel];
  if (c == nullptr)
    c = network_.communicator(
        wiring_.prefix + program_.channels[channel].name,
        wiring_.processes(members_of(program_, program_.channels[channel], rank_)));
  return *c;
}

void Operations::open_mailboxes() {
  for (Id channel = 0; channel < program_.channels.size(); ++channel) {
    std::vector<Id> senders, receivers;
    for (const program::Role& role : program_.roles) {
      bool puts = false, takes = false;
      for (const program::Op& op : role.ops) {
        if (const auto* put = std::get_if<program::Put>(&op.work)) puts |= put->channel == channel;
        if (const auto* take = std::get_if<program::Take>(&op.work))
          takes |= take->channel == channel;
      }
      if (puts) senders.insert(senders.end(), role.ranks.begin(), role.ranks.end());
      if (takes) receivers.insert(receivers.end(), role.ranks.begin(), role.ranks.end());
    }
    const auto has = [&](const std::vector<Id>& ranks) {
      return std::find(ranks.begin(), ranks.end(), rank_) != ranks.end();
    };
    if (!has(senders) && !has(receivers)) continue;
    bytes_put_ += mailboxes_[channel] == nullptr ? 0 : mailboxes_[channel]->traffic().sent;
    mailboxes_[channel] = network_.mailbox(
        fmt::format("{}{}#{}", wiring_.prefix, program_.channels[channel].name, run_),
        wiring_.processes(senders), wiring_.processes(receivers));
  }
  ++run_;
}

void Operations::end_run() {
  for (const std::unique_ptr<Mailbox>& mailbox : mailboxes_)
    if (mailbox != nullptr) mailbox->close();
  if (role_.round.steps > 0) rounds_.pause(now());
}

void Operations::prepare_collective(Prepared& p, const program::Collective& collective) {
  // A member without a source contributes zeros; a member without a target receives nothing.
  const Operand& source =
      p.at(program::Slot::source) ? *p.at(program::Slot::source) : p.need(program::Slot::target);
  const Operand& target = p.at(program::Slot::target) ? *p.at(program::Slot::target) : source;
  // Packets whose number of entries a threshold decides: only the bytes in use are sent.
  const program::Kernel* const varying = packets_of(target.storage);
  const program::Channel& channel = program_.channels[collective.channel];
  p.communicator = accelerator_ == nullptr || varying != nullptr
                       ? &communicator(p.op->lane, collective.channel)
                       : &wire(fmt::format("{}{} {}", wiring_.prefix, channel.name,
                                           lanes_before(role_, p.op->lane, collective.channel)),
                               members_of(program_, channel, rank_));
  CollectiveSpec spec{.move = collective.move,
                      .algorithm = collective.algorithm,
                      .dtype = source.dtype,
                      .elements = linked_.roles[role_id_].ops[p.id].elements,
                      .root = collective.distance};
  if (collective.root != none) {
    const std::vector<Id> members =
        members_of(program_, program_.channels[collective.channel], rank_);
    for (std::size_t member = 0; member < members.size(); ++member)
      if (linked_.role_of[members[member]] == collective.root) spec.root = static_cast<int>(member);
  }
  for (const Operand& dying : p.dies)
    spec.consume |= dying.storage == source.storage && dying.index == source.index;
  p.reduces = collective.move == program::Move::all_reduce ||
              collective.move == program::Move::reduce ||
              collective.move == program::Move::reduce_scatter;
  if (varying != nullptr) {
    const std::int64_t count = target.elements / packet_bytes(*varying);
    p.packets = std::make_unique<PacketExchange>(*p.communicator, collective.move, *varying, count,
                                                 spec.root);
    for (std::size_t i = 0; i < p.operands.size(); ++i)
      p.operands[i] = memory_.operand(
          p.op->refs[i], 0,
          packet_room(*varying) * (p.operands[i].elements / packet_bytes(*varying)));
    return;
  }
  p.handle = p.communicator->prepare(spec);
}

void Operations::prepare_exchange(Prepared& p, Id channel, Id peer) {
  const Id other = program_.roles[peer].ranks.at(linked_.place_of[rank_]);
  p.peer_rank = wiring_.process(other);
  if (accelerator_ == nullptr) {
    p.communicator = &communicator(p.op->lane, channel);
  } else {
    std::vector<Id> ends = {rank_, other};  // the sender, the receiver
    if (std::holds_alternative<program::Recv>(p.op->work)) std::swap(ends.front(), ends.back());
    p.communicator = &wire(fmt::format("{}{} {} to {}", wiring_.prefix,
                                       program_.channels[channel].name, ends.front(), ends.back()),
                           ends);
  }
  const std::vector<Id>& members = p.communicator->ranks();
  p.peer_member =
      static_cast<int>(std::find(members.begin(), members.end(), p.peer_rank) - members.begin());
}

}  // namespace rehearse::runtime
