#include "study/parts/aggregation.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/table.h"
#include "engine/costs/costs.h"
#include "engine/execution/dry_run/dry_run.h"
#include "engine/methods/lowering/secure_round.h"
#include "engine/methods/lowering/secure_sum.h"
#include "study/prediction/runs.h"
#ifdef REHEARSE_HAS_SIM
#include "sim/executor.h"
#include "sim/processes.h"
#endif

namespace rehearse::study {
namespace {

/// When the last answer of each round has arrived.
class RoundEnds : public execution::TraceSink {
 public:
  explicit RoundEnds(const program::Program& program) : program_(program) {}
  void record(Id role, Id op, int, Id, std::span<const double>,
              std::span<const double> ends) override {
    const std::vector<program::Op>& ops = program_.roles[role].ops;
    if (!std::holds_alternative<program::Recv>(ops[op].work) || role + 1 == program_.roles.size())
      return;
    // A client has one receive in each round.
    const auto round = std::count_if(ops.begin(), ops.begin() + op, [](const program::Op& earlier) {
      return std::holds_alternative<program::Recv>(earlier.work);
    });
    double& end = this->ends[static_cast<std::size_t>(round)];
    end = std::max(end, ends[0]);
  }
  std::array<double, secure::rounds> ends = {};

 private:
  const program::Program& program_;
};

std::array<double, secure::rounds> ends_of(const link::OrderedProgram& linked, const job::Job& job,
                                           Fidelity fidelity) {
  const std::vector<double> slow = link_slowdowns(job.disturb, job.cluster);
  const costs::Costs costs(linked, job.model, job.cluster,
                           {.rank_to_device = job.plan.placement.rank_to_device,
                            .optimizer = job.plan.optimizer,
                            .slow = slow});
  const cluster::Disturber disturber(job.disturb, linked.program.world_size);
  RoundEnds sink(linked.program);
  if (fidelity == Fidelity::analytic) {
    execution::dry_run(linked, costs, disturber, 1, sink);
    return sink.ends;
  }
#ifdef REHEARSE_HAS_SIM
  const auto simulated = [&](int) {
    sim::simulate(linked, costs, job.cluster, disturber, 1, sink,
                  {.fidelity = sim_fidelity(fidelity), .slow = slow});
    return std::string(reinterpret_cast<const char*>(sink.ends.data()), sizeof sink.ends);
  };
  std::array<double, secure::rounds> out = {};
  std::memcpy(out.data(), sim::in_processes(1, simulated).front().data(), sizeof out);
  return out;
#else
  throw needs_sim(fidelity);
#endif
}

/// Adds clients as "2" or "2:unmask". `option` and `does` are for messages.
void add_clients(secure::Leaving& out, const std::vector<std::string>& texts, const char* option,
                 const char* does) {
  for (const std::string& text : texts) {
    const auto wrong = [&](const std::string& why) {
      return InputError(fmt::format(
          "{} {}: {}; give a client, and before which round it {} (advertise, share, mask or "
          "unmask), as in 2 or 2:unmask",
          option, text, why, does));
    };
    const std::size_t colon = std::min(text.find(':'), text.size());
    Id client = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + colon, client);
    if (error != std::errc{} || end != text.data() + colon)
      throw wrong(fmt::format("\"{}\" is not a number", text.substr(0, colon)));
    if (client >= out.size()) throw wrong(fmt::format("the last client is {}", out.size() - 1));
    if (out[client] != secure::rounds) throw wrong("the client is named twice");
    const auto round = colon == text.size() ? secure::Round::mask
                                            : from_name<secure::Round>(text.substr(colon + 1));
    if (!round) throw wrong(fmt::format("\"{}\" is no round", text.substr(colon + 1)));
    out[client] = static_cast<int>(*round);
  }
}

/// By client: its samples, as a part of the largest client's.
std::vector<double> weights_of(const plan::Plan& plan) {
  std::vector<double> out;
  for (int client = 0; client < plan.mesh.dp; ++client) out.push_back(plan.samples(client));
  const double most = *std::ranges::max_element(out);
  for (double& weight : out) weight /= most;
  return out;
}

void check_same_bytes(const std::vector<secure::ClientTraffic>& foretold,
                      const std::vector<secure::ClientTraffic>& real) {
  for (std::size_t client = 0; client < foretold.size(); ++client)
    for (std::size_t round = 0; round < secure::rounds; ++round)
      if (foretold[client].up[round] != real[client].up[round] ||
          foretold[client].down[round] != real[client].down[round])
        throw BackendError(fmt::format(
            "client {} sent {} B and got {} B in round {}, and {} B and {} B were foretold", client,
            real[client].up[round], real[client].down[round],
            name_of(static_cast<secure::Round>(round)), foretold[client].up[round],
            foretold[client].down[round]));
}

}  // namespace

Aggregation aggregate(const job::Job& job, const AggregationQuestion& question) {
  const plan::Plan& plan = job.plan;
  const secure::Group group = methods::secure_group(
      plan, question.elements > 0 ? question.elements : model::parameters_of(job.model),
      question.seed);
  Aggregation out{
      .model = job.model.name,
      .cluster = job.cluster.name(),
      .fidelity = question.fidelity,
      .settings = group.settings,
      .leaving = secure::Leaving(static_cast<std::size_t>(plan.mesh.dp), secure::rounds),
      .timeout = question.timeout};
  out.silent = out.leaving;
  add_clients(out.leaving, question.leaving, "--drop", "leaves");
  add_clients(out.silent, question.silent, "--silent", "falls silent");
  for (std::size_t client = 0; client < out.silent.size(); ++client) {
    if (out.silent[client] == secure::rounds) continue;
    if (out.leaving[client] != secure::rounds)
      throw InputError(fmt::format("--silent {}: --drop names the client, too", client));
    out.leaving[client] = out.silent[client];
  }
  secure::check_leaving(group, out.leaving);
  const std::vector<secure::ClientTraffic> traffic = secure::traffic_of(group, out.leaving);
  const link::OrderedProgram linked =
      link::link(methods::secure_round(group, out.leaving, question.mask_rate));
  const std::array<double, secure::rounds> ends = ends_of(linked, job, question.fidelity);
  out.rounds.resize(secure::rounds);
  for (std::size_t round = 0; round < secure::rounds; ++round) {
    AggregationRound& of = out.rounds[round];
    for (const secure::ClientTraffic& client : traffic) {
      of.up += client.up[round];
      of.down += client.down[round];
    }
    const auto senders = secure::senders(out.leaving, static_cast<int>(round)).size();
    of.messages = 2 * static_cast<std::int64_t>(senders);
    if (std::ranges::find(out.silent, static_cast<int>(round)) != out.silent.end())
      of.waiting = question.timeout.value;
    of.seconds = ends[round] - (round == 0 ? 0 : ends[round - 1]) + of.waiting;
    out.seconds += of.seconds;
    out.bytes += of.up + of.down;
  }
  const std::vector<double> weights = weights_of(plan);
  const std::vector<Id> counted =
      secure::senders(out.leaving, static_cast<int>(secure::Round::mask));
  double counted_weights = 0;
  for (const Id client : counted) counted_weights += weights[client];
  const auto answered =
      secure::senders(out.leaving, static_cast<int>(secure::Round::unmask)).size();
  out.bytes_in_the_clear =
      4 * group.settings.elements * static_cast<std::int64_t>(counted.size() + answered);
  out.error_bound =
      secure::error_bound(static_cast<int>(counted.size()), counted_weights, group.settings.ring);
  if (question.run) {
    out.run = run_aggregation(group, {out.leaving, out.silent, out.timeout}, weights);
    check_same_bytes(traffic, out.run->traffic);
    if (!out.run->exact) throw BackendError("the secure sum is not the sum in the clear");
  }
  return out;
}

nlohmann::ordered_json to_json(const Aggregation& a) {
  nlohmann::ordered_json rounds = nlohmann::ordered_json::array(), drops = rounds, silent = rounds;
  for (std::size_t i = 0; i < a.rounds.size(); ++i) {
    const AggregationRound& round = a.rounds[i];
    rounds.push_back({{"round", name_of(static_cast<secure::Round>(i))},
                      {"messages", round.messages},
                      {"bytes_from_clients", round.up},
                      {"bytes_to_clients", round.down},
                      {"seconds", round.seconds},
                      {"waiting_seconds", round.waiting}});
  }
  for (std::size_t client = 0; client < a.leaving.size(); ++client)
    if (a.leaving[client] < secure::rounds)
      (a.silent[client] < secure::rounds ? silent : drops)
          .push_back({{"client", client},
                      {"before", name_of(static_cast<secure::Round>(a.leaving[client]))}});
  nlohmann::ordered_json out{{"schema_version", 1},
                             {"model", a.model},
                             {"cluster", a.cluster},
                             {"fidelity", name_of(a.fidelity)},
                             {"clients", a.settings.clients},
                             {"neighbours", a.settings.neighbours},
                             {"threshold", a.settings.threshold},
                             {"elements", a.settings.elements},
                             {"clip", a.settings.ring.clip},
                             {"levels", a.settings.ring.levels},
                             {"dropped", std::move(drops)},
                             {"silent", std::move(silent)},
                             {"timeout_seconds", a.timeout.value},
                             {"rounds", std::move(rounds)},
                             {"seconds", a.seconds},
                             {"bytes", a.bytes},
                             {"bytes_in_the_clear", a.bytes_in_the_clear},
                             {"error_bound", a.error_bound}};
  if (a.run)
    out["run"] = {{"clients_in_the_sum", a.run->counted},
                  {"sum_is_exact", a.run->exact},
                  {"error", a.run->error},
                  {"seconds", a.run->seconds}};
  return out;
}

std::string describe(const Aggregation& a) {
  const auto bytes = [](std::int64_t n) { return to_text(Bytes(static_cast<double>(n))); };
  const secure::Settings& s = a.settings;
  std::string out = fmt::format(
      "secure sum of {} clients with {} numbers each, on {}\neach client has {} neighbours; {} of "
      "{} shares open a secret\nnumbers from {} to {} in {} levels\n",
      s.clients, s.elements, a.cluster, s.neighbours, s.threshold, s.neighbours + 1, -s.ring.clip,
      s.ring.clip, s.ring.levels);
  for (std::size_t client = 0; client < a.leaving.size(); ++client)
    if (a.leaving[client] < secure::rounds)
      out += fmt::format("client {} {} before round {}{}\n", client,
                         a.silent[client] < secure::rounds ? "falls silent" : "leaves",
                         name_of(static_cast<secure::Round>(a.leaving[client])),
                         a.silent[client] < secure::rounds
                             ? fmt::format(", the server waits {} for it", to_text(a.timeout))
                             : "");
  std::vector<std::vector<std::string>> lines{
      {"round", "messages", "from clients", "to clients", "time"}};
  for (std::size_t i = 0; i < a.rounds.size(); ++i) {
    const AggregationRound& round = a.rounds[i];
    lines.push_back({std::string(name_of(static_cast<secure::Round>(i))),
                     fmt::format("{}", round.messages), bytes(round.up), bytes(round.down),
                     to_text(Seconds(round.seconds))});
  }
  out += fmt::format("\n{}\n{} in {}, {:.4f} times the bytes of a round in the clear ({})\n",
                     table(lines), bytes(a.bytes), to_text(Seconds(a.seconds)),
                     static_cast<double>(a.bytes) / static_cast<double>(a.bytes_in_the_clear),
                     name_of(a.fidelity));
  out += fmt::format("error of the mean: at most {:.2g}\n", a.error_bound);
  if (a.run)
    out += fmt::format(
        "really run: the sum of {} clients equals that in the clear, the error is {:.2g}, the "
        "bytes are those above, {}\n",
        a.run->counted, a.run->error, to_text(Seconds(a.run->seconds)));
  return out;
}

}  // namespace rehearse::study
