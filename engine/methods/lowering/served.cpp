#include "engine/methods/lowering/served.h"

#include <fmt/format.h>

#include "engine/base/refusal.h"

namespace rehearse::methods {

int server_of(const plan::Plan& plan, std::size_t bucket) {
  return static_cast<int>(bucket) % plan.mesh.servers;
}

std::string on_server(std::string_view what, int server) {
  return fmt::format("{}.{}", what, server);
}

std::string star_lane(program::Move move, int server) {
  const bool in = move == program::Move::reduce || move == program::Move::gather;
  return on_server(in ? "push" : "pull", server);
}

program::Collective star(program::Program& program, const plan::Plan& plan, program::Move move,
                         int server, int kinds, int local, int locals) {
  std::vector<Id> colour(static_cast<std::size_t>(plan.mesh.world_size()), none);
  for (int worker = local; worker < plan.mesh.dp; worker += locals)
    colour[static_cast<std::size_t>(worker)] = 0;
  colour[static_cast<Id>(plan.mesh.dp + server)] = 0;
  const std::string lane = star_lane(move, server);
  // All stars share one axis bit, because no layout names it.
  return {.channel = channel(
              program, locals == 1 ? lane : fmt::format("{}.{}", lane, local),
              {.axes = program::Axes{1} << program.mesh.size(), .colour = std::move(colour)}),
          .move = move,
          .algorithm = program::Algorithm::direct,
          .root = static_cast<Id>(kinds + server)};
}

program::RoleBuilder server_role(const plan::Plan& plan, int server) {
  return {fmt::format("server{}", server), {static_cast<Id>(plan.mesh.dp + server)}};
}

LoweredProgram lower_served(const plan::Plan& plan, const model::ModelSpec& model,
                            const GradientSync& sync,
                            void (*serve)(Server&, const std::vector<Bucket>&)) {
  program::Program program = make_mesh(plan);
  const std::vector<StageRole> roles = stage_roles(program, plan, sync);
  std::vector<Bucket> buckets;
  for (const StageRole& who : roles) {
    Stage workers(program, plan, model, who, sync);
    buckets = workers.buckets();
    if (buckets.size() < static_cast<std::size_t>(plan.mesh.servers))
      refuse("servers", std::to_string(plan.mesh.servers),
             fmt::format("the weights of {} make {} shards; nearest: {}", model.name,
                         buckets.size(), buckets.size()));
    workers.lower(one_by_one.actions(plan, 0));
    program.roles.push_back(workers.role().take());
    program.roles.back().free_running = sync.workers_run_free();
  }
  for (int s = 0; s < plan.mesh.servers; ++s) {
    program::RoleBuilder role = server_role(plan, s);
    std::vector<Bucket> own;
    for (std::size_t b = 0; b < buckets.size(); ++b)
      if (server_of(plan, b) == s) own.push_back(buckets[b]);
    Server server{.program = program,
                  .plan = plan,
                  .model = model,
                  .role = role,
                  .index = s,
                  .kinds = static_cast<int>(roles.size())};
    serve(server, own);
    program.roles.push_back(role.take());
  }
  return {std::move(program)};
}

double bucket_of_server(const plan::Plan& plan, const model::ModelSpec& model) {
  return static_cast<double>(parameters_of(model) * size_of(plan.precision)) / plan.mesh.servers;
}

void put_to_server(Stage& stage, int server, program::Ref what, int shift) {
  const std::string name = on_server("push", server);
  const Id mailbox = channel(stage.program(), name, {}, program::Match::mailbox);
  stage.role().op(name, program::Put{.channel = mailbox, .peer = static_cast<Id>(1 + server)},
                  {what}, shift);
}

void take_answer(Stage& stage, int server, program::Ref into, int shift) {
  const std::string name = on_server("pull", server);
  const Id mailbox = channel(stage.program(), name, {}, program::Match::mailbox);
  stage.role().op(name, program::Take{.channel = mailbox}, {into}, shift);
}

void needs_server(const plan::Plan& plan) {
  if (plan.mesh.servers < 1)
    refuse("servers", std::to_string(plan.mesh.servers),
           fmt::format("{} needs at least 1 server", plan.method));
}

}  // namespace rehearse::methods
