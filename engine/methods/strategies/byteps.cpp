// BytePS (Jiang et al., OSDI 2020; semantics and defaults of bytedance/byteps at f5df52f): data
// parallelism whose gradients are summed first by the ranks of a machine and then by servers, which
// only sum; every worker keeps the optimizer. One partition on a worker, its server, and the next
// step:
//
//   reduce    | reduce-scatter in the machine |
//   push.s                                    | to server s |
//   server s                                                | adds |
//   pull.s                                                         | the sum |
//   gather                                                                   | all-gather |
//   compute   backward ...                        next step: update, forward of the layer |
//
// - Partitions (lowering/partitions.h) are 4,096,000 bytes. Each local rank exchanges its part of
//   a partition, so a machine sends and receives all gradients once.
// - Updates belong to the step before (shift = 1) and stand in front of the first forward that
//   reads their weights. So a layer's forward waits for its own partitions and for no others.
// - With `credit`, partitions are exchanged in the order of plan.exchange.machines.push_order: of
//   those that are ready, the nearest to the model's input first (planner/push_order.h). No more
//   than credit x the bytes of a partition are between the begin of their exchange and the end of
//   their pull.
// - One machine needs no server. A norm (clipping) needs all gradients, so updates then wait for
//   it.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/names.h"
#include "engine/base/numbers/divisors.h"
#include "engine/methods/lowering/exchange/partitions.h"
#include "engine/methods/lowering/exchange/replicated.h"
#include "engine/methods/lowering/served.h"
#include "engine/methods/lowering/updates.h"
#include "engine/methods/strategy.h"

namespace rehearse::methods {
namespace {

/// BYTEPS_PARTITION_BYTES.
constexpr Bytes default_partition = Bytes(4'096'000);

/// The axes along which the ranks of a machine differ.
program::Axes local_axes(const program::Program& program, const plan::Plan& plan) {
  if (local_ranks(plan) == 1) return 0;
  return local_ranks(plan) == plan.mesh.dp ? data_axes(program) : axis_named(program, "shard");
}

/// The workers with one local rank form a role, because each of them meets the servers apart.
std::vector<StageRole> worker_roles(const plan::Plan& plan) {
  std::vector<StageRole> roles;
  for (int local = 0; local < local_ranks(plan); ++local) {
    StageRole role{.kind = local, .kinds = local_ranks(plan), .samples = plan.samples()};
    for (int rank = local; rank < plan.mesh.dp; rank += local_ranks(plan))
      role.ranks.push_back(static_cast<Id>(rank));
    roles.push_back(std::move(role));
  }
  return roles;
}

/// A reduce to a server, or a broadcast from it, among it and the workers with one local rank.
program::Collective meet(program::Program& program, const plan::Plan& plan, program::Move move,
                         int server, int local) {
  return star(program, plan, move, server, local_ranks(plan), local, local_ranks(plan));
}

/// The partitions in the order in which they are exchanged.
std::vector<Id> order_of(const plan::Plan& plan, std::size_t partitions) {
  std::vector<Id> order(partitions);
  std::iota(order.begin(), order.end(), Id{0});
  if (plan.exchange.machines.push_order.empty()) return order;
  if (!std::ranges::is_permutation(order, plan.exchange.machines.push_order))
    refuse("push_order", fmt::format("of {} partitions", plan.exchange.machines.push_order.size()),
           fmt::format("must name each of the {} partitions once; plan again", partitions));
  return plan.exchange.machines.push_order;
}

class PushPull final : public Replicated {
 public:
  bool bucket_per_segment(const plan::Plan&) const override { return true; }
  bool equal_parts(const plan::Plan& plan) const override { return local_ranks(plan) > 1; }
  void reduce(Stage&, Bucket&, int, bool, int) const override {}

  void before_use(Stage& stage, const Bucket& bucket, program::Pass pass, int,
                  int shift) const override {
    if (pass == program::Pass::forward && !stage.optimizer().needs_norm() &&
        stage.once("update." + bucket.name))
      update(stage, bucket, shift + 1);
  }

  void finish(Stage& stage, int shift) const override {
    const plan::Plan& plan = stage.plan();
    const std::vector<Partition> partitions = partitions_of(plan, stage.buckets());
    const std::vector<Id> order = order_of(plan, partitions.size());
    std::vector<Exchanged> done;
    std::size_t waited = 0;  // exchanges that a later one waits for
    double open = 0;         // bytes of those after them
    for (const Id i : order) {
      done.push_back(exchange(stage, partitions[i], shift));
      if (!plan.exchange.machines.credit || done.back().last == none) continue;
      for (open += done.back().bytes; open > most_open(plan, partitions); ++waited) {
        stage.role().throttle(done.back().first, done[waited].last);
        open -= done[waited].bytes;
      }
    }
    if (!stage.optimizer().needs_norm()) return;
    emit_norm(stage, {}, shift);
    for (const Bucket& bucket : stage.buckets()) update(stage, bucket, shift);
  }

 private:
  struct Exchanged {
    Id first = none, last = none;  // its first op and its pull; none: it has no pull
    double bytes = 0;
  };

  static double most_open(const plan::Plan& plan, const std::vector<Partition>& partitions) {
    std::int64_t largest = 0;
    for (const Partition& p : partitions) largest = std::max(largest, p.end - p.begin);
    return static_cast<double>(*plan.exchange.machines.credit) * static_cast<double>(largest);
  }

  /// The view of a partition in a view of a whole bucket.
  static Id part(Stage& stage, Id whole, const Partition& p, program::Axes slice = 0) {
    if (whole == none) return none;
    const program::View view = stage.role().role().views[whole];
    const bool all = p.begin == 0 && p.end == view.end && slice == 0;
    if (all) return whole;
    const std::string at =
        p.name.substr(p.name.find('.') == p.name.npos ? p.name.size() : p.name.find('.'));
    return stage.role().view({.name = view.name + at + (slice == 0 ? "" : ".own"),
                              .storage = view.storage,
                              .begin = p.begin,
                              .end = p.end,
                              .slice = slice});
  }

  /// Sums a partition over the machine, over machines, and brings the sum to all its ranks.
  static Exchanged exchange(Stage& stage, const Partition& p, int shift) {
    const plan::Plan& plan = stage.plan();
    program::RoleBuilder& role = stage.role();
    const Id grad = stage.buckets()[p.bucket].views.grad;
    const program::Axes local = local_axes(stage.program(), plan);
    const program::Layout summed{.shard = local};
    const program::Layout of_machine{.shard = local, .partial = stage.dp() & ~local};
    const Id whole = part(stage, grad, p), own = part(stage, grad, p, local);
    const auto from = [](Id view, program::Layout layout) {
      return ref(view, program::Slot::source, program::Mode::read, 0, 0, layout);
    };
    const auto to = [](Id view, program::Layout layout) {
      return ref(view, program::Slot::target, program::Mode::write, 0, 0, layout);
    };
    Exchanged out{.first = static_cast<Id>(role.role().ops.size()),
                  .bytes = static_cast<double>(p.end - p.begin)};
    const auto in_machine = [&](const char* lane, program::Move move) {
      return stage.collective(channel(stage.program(), lane, {.axes = local}), move);
    };
    if (local != 0)
      role.op("reduce", in_machine("reduce", program::Move::reduce_scatter),
              {from(whole, {.partial = stage.dp()}), to(own, of_machine)}, shift);
    const auto with_server = [&](program::Move move, program::Ref of) {
      return role.op(star_lane(move, p.server),
                     meet(stage.program(), plan, move, p.server, stage.who().kind), {of}, shift);
    };
    if (p.server >= 0) {
      with_server(program::Move::reduce, from(own, of_machine));
      out.last = with_server(program::Move::broadcast, to(own, summed));
    }
    if (local != 0)
      role.op("gather", in_machine("gather", program::Move::all_gather),
              {from(own, summed), to(whole, {})}, shift);
    return out;
  }

  /// Updates the weights of a bucket, partition by partition.
  static void update(Stage& stage, const Bucket& bucket, int shift) {
    OptimizerOps& optimizer = stage.optimizer();
    const program::Ref sum = ref(bucket.views.sum, program::Slot::grad, program::Mode::read);
    optimizer.observe(bucket, sum, bucket.elements, optimizer.stride(bucket, stage.model()), shift);
    for (const Partition& p : partitions_of(stage.plan(), stage.buckets())) {
      if (&stage.buckets()[p.bucket] != &bucket) continue;
      Bucket one = bucket;
      for (Id* view : {&one.views.moment1, &one.views.moment2, &one.views.master})
        *view = part(stage, *view, p);
      optimizer.update(
          one,
          ref(part(stage, bucket.views.own_weight, p), program::Slot::param, program::Mode::add),
          ref(part(stage, bucket.views.sum, p), program::Slot::grad, program::Mode::read), shift);
    }
  }
};

const GradientSync& push_pull(const plan::Plan&) {
  static const PushPull sync;
  return sync;
}

/// A server: takes each partition, one part after the other, and sends its sum back.
program::Role serve(program::Program& program, const plan::Plan& plan,
                    const std::vector<Partition>& partitions, int server) {
  program::RoleBuilder role = server_role(plan, server);
  for (const Id i : order_of(plan, partitions.size())) {
    const Partition& p = partitions[i];
    for (int local = 0; p.server == server && local < local_ranks(plan); ++local) {
      const Id sum = role.storage(
          {.name = local_ranks(plan) == 1 ? "S." + p.name : fmt::format("S.{}.{}", p.name, local),
           .life = program::Life::buffer,
           .dtype = plan.gradient_type(),
           .elements = (p.end - p.begin) / local_ranks(plan)});
      role.op("push", meet(program, plan, program::Move::reduce, server, local),
              {ref(sum, program::Slot::target, program::Mode::write)});
      role.op("pull", meet(program, plan, program::Move::broadcast, server, local),
              {ref(sum, program::Slot::source, program::Mode::read)});
    }
  }
  return role.take();
}

LoweredProgram lower_push_pull(const plan::Plan& plan, const model::ModelSpec& model) {
  program::Program program = make_mesh(plan);
  const std::vector<Partition> partitions = partitions_of(plan, model);
  for (const StageRole& who : worker_roles(plan)) {
    Stage workers(program, plan, model, who, push_pull(plan));
    workers.lower(one_by_one.actions(plan, 0));
    program.roles.push_back(workers.role().take());
  }
  for (int server = 0; server < plan.mesh.servers; ++server)
    program.roles.push_back(serve(program, plan, partitions, server));
  return {std::move(program)};
}

void defaults(plan::Plan& plan) {
  plan::Exchange& x = plan.exchange;
  if (!x.bucket) x.bucket = default_partition;
  if (!x.machines.local_ranks) x.machines.local_ranks = std::max(1, group_in_nodes(plan));
  if (machines_of(plan) > 1) plan.mesh.servers = std::max(plan.mesh.servers, 1);
}

/// Refuses a number of servers that does not fit where they are.
void check_servers(const plan::Plan& plan) {
  const int machines = machines_of(plan), servers = plan.mesh.servers;
  const auto placement = plan.exchange.machines.server_placement;
  if (placement == plan::ServerPlacement::colocated && servers != machines && servers > 0)
    refuse("servers", std::to_string(servers),
           fmt::format("colocated servers are one for each machine; nearest: {}", machines));
  if (placement == plan::ServerPlacement::mixed && (servers <= machines || servers >= 2 * machines))
    refuse("servers", std::to_string(servers),
           machines == 1
               ? std::string("mixed servers need several machines; there is 1")
               : fmt::format("of mixed servers, one is on each of the {} machines and fewer than "
                             "that are on nodes of their own; nearest: {}",
                             machines, servers <= machines ? machines + 1 : 2 * machines - 1));
  if (plan.exchange.machines.credit && servers == 0)
    refuse("credit", std::to_string(*plan.exchange.machines.credit),
           "limits what is on its way to servers, and there are none; leave it out");
}

/// Refuses colocated servers that are on other nodes than their machines. Nodes that are one (the
/// ranks of this machine, say) stand for any number of machines.
void check_nodes(const plan::Plan& plan) {
  const std::vector<Id>& node_of = plan.placement.node_of;
  if (plan.exchange.machines.server_placement == plan::ServerPlacement::own ||
      plan.mesh.servers == 0 ||
      node_of.size() != static_cast<std::size_t>(plan.mesh.world_size()) ||
      std::ranges::count(node_of, node_of.front()) == std::ssize(node_of))
    return;
  for (int machine = 0; machine < machines_of(plan); ++machine) {
    const auto worker = static_cast<Id>(machine * local_ranks(plan)),
               server = static_cast<Id>(plan.mesh.dp + machine);
    if (node_of[worker] != node_of[server])
      refuse("server_placement", std::string(name_of(plan.exchange.machines.server_placement)),
             fmt::format("rank {}, the server of machine {}, is on node {}, and the workers are on "
                         "node {}; list in cluster.devices the workers' devices, then a device of "
                         "each machine in their order, then those of other servers",
                         server, machine, node_of[server], node_of[worker]));
  }
}

void check(const plan::Plan& plan, const model::ModelSpec&) {
  if (plan.mesh.dp % local_ranks(plan) != 0)
    refuse("local_ranks", std::to_string(local_ranks(plan)),
           fmt::format("must divide the {} workers; nearest: {}", plan.mesh.dp,
                       nearest_divisor(plan.mesh.dp, local_ranks(plan))));
  check_servers(plan);
  check_nodes(plan);
}

const Register method("byteps", {.summary = "data parallelism, servers sum gradients, by priority",
                                 .source = "Jiang et al., OSDI 2020",
                                 .combines = {.servers = true,
                                              .low_precision = false,
                                              .lockstep = false,
                                              .offload = false,
                                              .machines = true},
                                 .defaults = defaults,
                                 .check = check,
                                 .sync = push_pull,
                                 .lower = lower_push_pull});

}  // namespace
}  // namespace rehearse::methods
