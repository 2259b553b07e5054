#include "cli/train/recover.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/train/check_recovery.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/faults/trace_file.h"
#include "engine/goodput/checkpoint_prices.h"
#include "engine/methods/strategy.h"
#include "runtime/checkpoints/files/manifest.h"
#include "runtime/checkpoints/files/node_store.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/control/launch/launcher.h"
#include "runtime/executor/fault_injector.h"
#include "study/load.h"

namespace rehearse::cli {
namespace {

using job::RecoveryPolicy;

/// How many ranks a start has, and what the user's command line gets in addition.
struct Start {
  int ranks = 1;
  std::vector<std::string> set = {};
  std::vector<int> shares = {};  // to which a slow rank has led; empty: those of the job
};

/// A start with fewer ranks, at most `left`; nothing when the method has none.
std::optional<Start> shrunk(const Context& context, const TrainFlags& options, const job::Job& job,
                            int left) {
  const plan::Mesh& mesh = job.plan.mesh;
  const int each = mesh.pp * mesh.cp * mesh.tp;
  const bool planned = methods::planned(job.plan.method);
  for (int dp = (left - mesh.servers) / each; dp >= 1; --dp) {
    Start start{.ranks = dp * each + mesh.servers};
    start.set = {fmt::format("cluster.world_size={}", start.ranks)};
    if (!planned) start.set.push_back(fmt::format("method.dp={}", dp));
    Context fewer = context;
    fewer.set.insert(fewer.set.end(), start.set.begin(), start.set.end());
    try {
      study::load_for(options.job, fewer.set, start.ranks);
      return start;
    } catch (const InputError&) {  // the batch cannot be divided among so many
      continue;
    }
  }
  return std::nullopt;
}

class Recovery {
 public:
  Recovery(const Context& context, const TrainFlags& options, const job::Job& job)
      : context_(context), options_(options), job_(job), start_{.ranks = options.nproc} {}

  int run(const runtime::RankWork& rank) {
    runtime::LaunchOptions launch{.nproc = options_.nproc};
    if (elastic()) {
      const auto [least, most] = node_range(options_.nnodes);
      const std::string folder =
          options_.rendezvous.empty()
              ? (std::filesystem::path(job_.train.out) / "rendezvous").string()
              : options_.rendezvous;
      launch.elastic = {.folder = folder,
                        .least = least,
                        .most = most,
                        .silence = Seconds(std::max(3.0, 3 * job_.run.heartbeat.value)),
                        .patience = job_.run.connect_timeout,
                        .interface = job_.run.interface};
    } else {
      forget_earlier_run();
    }
    if (job_.recovery.restarts > 0 || elastic()) {
      if (policy() == RecoveryPolicy::spare) launch.spares = job_.recovery.spares.value_or(1);
      launch.recover = [this](const runtime::Launched& ended) { return next(ended); };
      launch.began = [this](std::int64_t step, double down_s) { note(step, down_s); };
    }
    const int status = runtime::launch(rank, launch).status;
    if (pending_) note(pending_->from_step, {});
    return status;
  }

 private:
  static constexpr const char* recoveries = "recoveries.jsonl";
  /// What recoveries.jsonl will say of a recovery.
  struct Pending {
    int number = 0;
    std::vector<int> died = {}, hung = {};
    int joined = 0;
    std::int64_t from_step = 0;
  };

  RecoveryPolicy policy() const { return job_.recovery.policy; }
  std::string_view policy_name() const { return elastic() ? "elastic" : name_of(policy()); }
  bool elastic() const { return !options_.nnodes.empty(); }
  int most_ranks() const { return options_.nproc * node_range(options_.nnodes).second; }

  void forget_earlier_run() const {
    const std::filesystem::path folder = job_.train.out;
    if (options_.resume || folder.empty()) return;
    std::error_code ignored;  // whoever writes to the folder says what is wrong with it
    for (const char* file : {recoveries, "faults.jsonl"})
      std::filesystem::remove(folder / file, ignored);
  }

  /// The first start of an elastic run, with the nodes that have come.
  runtime::NextStart first(const runtime::Launched& there) {
    if (!options_.resume && !options_.overwrite) runtime::check_unused(job_.train.out);
    forget_earlier_run();
    start_ = with_who_is_there(there);
    return {.ranks = start_.ranks, .set = start_.set, .first_start = true};
  }

  std::optional<runtime::NextStart> next(const runtime::Launched& ended) {
    if (ended.ranks == 0) return first(ended);
    if (elastic()) number_ = ended.recoveries;
    if (pending_) note(pending_->from_step, {});  // it failed before its first step
    if (!ended.drained && number_ == job_.recovery.restarts) return std::nullopt;
    if (!ended.drained) ++number_;
    std::vector<int> leaving;
    if (ended.rebalanced)
      start_.shares = ended.rebalanced->shares;
    else if (elastic() || policy() == RecoveryPolicy::shrink || policy() == RecoveryPolicy::grow)
      start_ = with_who_is_there(ended);
    else if (policy() == RecoveryPolicy::replica)
      start_ = with_whole_replicas(ended, leaving);
    const auto [saved, step] = newest_state();
    pending_ = Pending{.number = number_,
                       .died = ended.died,
                       .hung = ended.hung,
                       .joined = ended.drained ? start_.ranks - ended.ranks : 0,
                       .from_step = step};
    runtime::NextStart next{
        .ranks = start_.ranks,
        .anew = policy() == RecoveryPolicy::restart && !elastic() && !ended.drained,
        .leaving = leaving,
        .resume_from = saved,
        .set = start_.set};
    if (!elastic() && (policy() == RecoveryPolicy::grow || policy() == RecoveryPolicy::replica)) {
      next.joining = options_.nproc - start_.ranks;
      next.joining_after = job_.recovery.replacement.value_or(Seconds(0));
    }
    if (!start_.shares.empty())
      next.set.push_back(fmt::format("method.shares=[{}]", fmt::join(start_.shares, ",")));
    const std::string what =
        ended.rebalanced
            ? fmt::format("{}; shares [{}]", ended.rebalanced->why, fmt::join(start_.shares, ", "))
        : ended.drained ? fmt::format("{} ranks join", pending_->joined)
                        : fmt::format("recovery {} of {}", number_, job_.recovery.restarts);
    fmt::print(stderr, "rehearse: {} ({}): {} ranks go on from step {}\n", what, policy_name(),
               start_.ranks, pending_->from_step);
    return next;
  }

  /// The newest undamaged checkpoint, in train.out or with the nodes, and its step.
  std::pair<std::string, std::int64_t> newest_state() const {
    std::vector<runtime::PassedOver> passed;
    std::string saved = runtime::newest_whole_checkpoint(job_.train.out, passed);
    std::int64_t step = saved.empty() ? 0 : runtime::read_manifest(saved).step;
    const runtime::NodeStore store(job_);
    if (store.used()) {
      const auto until = runtime::checked_until(job_.train.out);
      const std::vector<std::vector<runtime::HeldCheckpoint>> all = {
          runtime::held_in(store.root())};
      if (const auto held = runtime::newest_of(all, until); held && held->step >= step)
        saved = store.root(), step = held->step;
      std::ranges::move(runtime::passed_over(all, step), std::back_inserter(passed));
    }
    for (const runtime::PassedOver& one : passed)
      if (one.step > step) fmt::print(stderr, "rehearse: {}\n", describe(one));
    return {saved, step};
  }

  /// The largest start that the processes which are left, and those that stand by, can make up.
  Start with_who_is_there(const runtime::Launched& ended) const {
    // Of an elastic run, launchers tell how many ranks they can have in all.
    const int left =
        (elastic() ? 0 : ended.ranks - static_cast<int>(ended.died.size())) + ended.standing_by;
    if (left >= most_ranks()) return {.ranks = most_ranks()};
    if (const auto start = shrunk(context_, options_, job_, left);
        start && start->ranks >= job_.recovery.min_ranks)
      return *start;
    throw BackendError(fmt::format(
        "recovery.policy = {}: {} of {} ranks are left, and method \"{}\" with pp {} x cp {} x tp "
        "{}, a "
        "batch of {} and recovery.min_ranks = {} has no plan for so few",
        policy_name(), left, ended.ranks, job_.plan.method, job_.plan.mesh.pp, job_.plan.mesh.cp,
        job_.plan.mesh.tp, job_.plan.schedule.global_batch, job_.recovery.min_ranks));
  }

  /// The replicas that have lost no rank, without the samples of the others. All of them after a
  /// drain, when the others have come back, or when no replica is whole: a replica without its
  /// parameter server is not.
  Start with_whole_replicas(const runtime::Launched& ended, std::vector<int>& leaving) {
    const std::vector<Id> replica = goodput::layout_of(job_.cluster, job_.plan).replica_of_rank;
    std::vector<int> now;  // the first start's number of each rank
    for (int rank = 0; rank < options_.nproc; ++rank)
      if (!lost_.contains(replica[static_cast<std::size_t>(rank)])) now.push_back(rank);
    const auto of_rank = [&](int rank) {
      return replica[static_cast<std::size_t>(now[static_cast<std::size_t>(rank)])];
    };
    const bool server_died =
        std::ranges::any_of(ended.died, [&](int rank) { return of_rank(rank) == none; });
    for (const int rank : ended.died) lost_.insert(of_rank(rank));
    for (int rank = 0; rank < ended.ranks; ++rank)
      if (lost_.contains(of_rank(rank)) && std::ranges::count(ended.died, rank) == 0)
        leaving.push_back(rank);
    const plan::Mesh& mesh = job_.plan.mesh;
    const int dp = mesh.dp - static_cast<int>(lost_.size());
    const int ranks = mesh.pp * mesh.cp * mesh.tp * dp + mesh.servers;
    if (ended.drained || lost_.empty() || server_died || dp == 0 ||
        ranks < job_.recovery.min_ranks) {
      lost_.clear();
      leaving.clear();
      return {.ranks = options_.nproc};
    }
    const plan::Schedule& schedule = job_.plan.schedule;
    std::vector<int> left_out, shares;
    int begin = 0;  // of a replica's samples: replicas have them in order
    for (Id r = 0; r < static_cast<Id>(mesh.dp); ++r) {
      const int share = schedule.shares.empty() ? schedule.global_batch / mesh.dp
                                                : schedule.shares[r] * schedule.micro_batches;
      if (lost_.contains(r))
        left_out.insert(left_out.end(), {begin, begin + share});
      else if (!schedule.shares.empty())
        shares.push_back(schedule.shares[r]);
      begin += share;
    }
    int batch = schedule.global_batch;
    for (std::size_t i = 0; i < left_out.size(); i += 2) batch -= left_out[i + 1] - left_out[i];
    return {.ranks = ranks,
            .set = {fmt::format("cluster.world_size={}", ranks), fmt::format("method.dp={}", dp),
                    fmt::format("train.global_batch={}", batch),
                    fmt::format("method.micro_batches={}", schedule.micro_batches),
                    fmt::format("method.shares=[{}]", fmt::join(shares, ",")),
                    fmt::format("train.left_out=[{}]", fmt::join(left_out, ","))}};
  }

  /// `down_s`: none if the start has not run a step.
  void note(std::int64_t step, std::optional<double> down_s) {
    if (!pending_) return;  // another launcher decided this start, and has died
    const Pending said = *std::exchange(pending_, std::nullopt);
    nlohmann::ordered_json line{{"schema_version", 1},     {"number", said.number},
                                {"policy", policy_name()}, {"died", said.died},
                                {"hung", said.hung},       {"joined", said.joined},
                                {"ranks", start_.ranks},   {"from_step", step},
                                {"shares", start_.shares}, {"down_s", nullptr}};
    if (down_s) line["down_s"] = *down_s;
    const auto path = std::filesystem::path(job_.train.out) / recoveries;
    if (!(std::ofstream(path, std::ios::app) << line.dump() << "\n"))
      throw BackendError(fmt::format("{}: cannot be written", path.string()));
  }

  const Context& context_;
  const TrainFlags& options_;
  const job::Job& job_;
  Start start_;
  int number_ = 0;          // of the last recovery
  std::set<Id> lost_ = {};  // replica: those that are not there now
  std::optional<Pending> pending_ = {};
};

}  // namespace

void check_survival(const job::Job& job) {
  using job::CheckpointKind;
  const job::Checkpoint& how = job.checkpoint;
  if (how.kind == CheckpointKind::incremental && how.place != job::CheckpointPlace::shared)
    throw InputError(fmt::format(
        "checkpoint.place: \"{}\" with checkpoint.kind = \"incremental\": `rehearse train` saves "
        "increments beside the whole checkpoint that they need, in train.out (\"shared\"); "
        "\"sharded\" and \"async\" save to nodes",
        name_of(how.place)));
  const runtime::NodeStore store(job);
  if (how.kind == CheckpointKind::peer && store.used() && store.nodes() < 2)
    throw InputError(fmt::format(
        "checkpoint.kind: \"peer\" needs ranks on two nodes at least; those of cluster {} are on "
        "one: \"{}\" fits, with checkpoint.place = \"memory\" if need be",
        job.cluster.name(),
        methods::cannot_save_behind(job.plan.method).empty() ? "async" : "sharded"));
  if (how.place == job::CheckpointPlace::local && how.folder.empty())
    throw InputError(
        "checkpoint.place: \"local\" needs checkpoint.folder, the folder of each node's disk in "
        "which `rehearse train` saves");
  if (store.used() && !std::filesystem::is_directory(how.folder))
    throw InputError(fmt::format("checkpoint.folder = \"{}\": no such folder", how.folder));
  if (job.recovery.restarts == 0) return;
  if (job.train.out.empty())
    throw InputError("recovery.restarts needs train.out, where a run finds its checkpoints");
}

std::shared_ptr<const faults::Trace> replayed_faults(const job::Job& job) {
  if (!job.faults.model.empty())
    throw InputError(
        "faults.model is known to predictions only: draw a trace from it with `rehearse faults`, "
        "or "
        "write one (docs/faults.md)");
  if (job.faults.trace.empty()) return nullptr;
  // The launcher has checked the ranks. After a recovery with fewer of them, events of the others
  // strike nobody.
  const int ranks = runtime::launched() ? 0 : job.plan.mesh.world_size();
  auto trace = std::make_shared<faults::Trace>(
      faults::load_trace(job.faults.trace, {.world_size = ranks, .cluster = &job.cluster}));
  if (job.train.out.empty())
    throw InputError(
        "faults.trace needs train.out, where ranks write down which events have struck");
  for (std::size_t i = 0; i < trace->events.size(); ++i)
    if (const std::string why = runtime::not_replayed(trace->events[i]); !why.empty())
      throw InputError(fmt::format("{}: event {} ({}) cannot be replayed: {}", job.faults.trace,
                                   i + 1, name_of(trace->events[i].kind), why));
  return trace;
}

std::pair<int, int> node_range(const std::string& nnodes) {
  if (nnodes.empty()) return {1, 1};
  const auto wrong = [&] {
    return InputError(fmt::format(
        "--nnodes {}: must be MIN:MAX, the least and the most nodes, for example 2:4", nnodes));
  };
  const auto number = [&](std::string_view text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1) throw wrong();
    return value;
  };
  const std::string_view text = nnodes;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {number(text), number(text)};
  const std::pair range{number(text.substr(0, colon)), number(text.substr(colon + 1))};
  if (range.first > range.second) throw wrong();
  return range;
}

int launch_and_recover(const Context& context, const TrainFlags& options, const job::Job& job,
                       const runtime::RankWork& rank) {
  const bool elastic = !options.nnodes.empty();
  check_policy(job, elastic);
  check_slow_rank(job, job.recovery.restarts > 0 && !elastic);
  return Recovery(context, options, job).run(rank);
}

}  // namespace rehearse::cli
