// Programs with server ranks: the ranks after the mesh's are servers, to which workers push
// gradients or weights and from which they pull weights.
//
//   worker 0   worker 1   worker 2
//        \         |         /       push: one channel for each server
//         server 0    server 1       pull: another one
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/methods/lowering/stage/stage.h"

namespace rehearse::methods {

/// The server that a bucket lives on. Buckets are dealt out in turn.
int server_of(const plan::Plan& plan, std::size_t bucket);
/// The name of a lane or channel of one server: "push.1".
std::string on_server(std::string_view what, int server);

/// The lane, and the name of the channel, of moves to a server (push.N), or from it (pull.N).
std::string star_lane(program::Move move, int server);
/// A reduce or a gather from all workers to a server, or a broadcast or a scatter from it to them,
/// by direct messages. `kinds`: the roles of workers, which come before those of servers. With
/// `locals` > 1, only each `locals`-th worker from `local` on takes part (push.N.LOCAL).
program::Collective star(program::Program& program, const plan::Plan& plan, program::Move move,
                         int server, int kinds, int local = 0, int locals = 1);
/// A server's role without ops: its name, and the rank after those of workers and of other servers.
program::RoleBuilder server_role(const plan::Plan& plan, int server);

/// One server while it is lowered.
struct Server {
  program::Program& program;
  const plan::Plan& plan;
  const model::ModelSpec& model;
  program::RoleBuilder& role;
  int index = 0;
  int kinds = 1;  // as in `star`
};

/// The program: one role for each kind of worker, one role for each server. `serve` adds a server's
/// ops, given the server's buckets as the workers have them. Throws Refused when a server would
/// have no bucket.
LoweredProgram lower_served(const plan::Plan& plan, const model::ModelSpec& model,
                            const GradientSync& sync,
                            void (*serve)(Server&, const std::vector<Bucket>&));

// A server that serves each worker as its message arrives (mailboxes). A mailbox does not say which
// bucket arrives, so there is one bucket for each server.

/// Bytes of such a bucket's gradients.
double bucket_of_server(const plan::Plan& plan, const model::ModelSpec& model);
/// A worker sends `what` to a server, and takes the server's answer into `into`.
void put_to_server(Stage& stage, int server, program::Ref what, int shift);
void take_answer(Stage& stage, int server, program::Ref into, int shift);
/// A server takes a message of each worker into `into`. After each it does what `apply` adds, given
/// the age of its state before, and answers the sender with `answer`.
template <class Apply>
void serve_by_arrival(Server& server, program::Ref into, program::Ref answer, Apply apply) {
  const Id push = channel(server.program, on_server("push", server.index)),
           pull = channel(server.program, on_server("pull", server.index));
  for (int message = 0; message < server.plan.mesh.dp; ++message) {
    server.role.op("compute", program::Take{.channel = push}, {into});
    apply(message == 0 ? 1 : 0);
    server.role.op("compute", program::Put{.channel = pull, .peer = 0, .reply = push}, {answer});
  }
}

/// Throws Refused when the plan has no server.
void needs_server(const plan::Plan& plan);

}  // namespace rehearse::methods
