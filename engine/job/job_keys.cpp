#include "engine/job/job_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <concepts>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "engine/base/choose.h"
#include "engine/base/errors.h"
#include "engine/base/files/file_kinds.h"
#include "engine/base/heartbeat.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"
#include "engine/base/refusal.h"
#include "engine/job/survival_keys.h"
#include "engine/plan/fields.h"

namespace rehearse::job {

using std::string_literals::operator""s;

namespace {

using plan::natural, plan::positive;
/// The part of an old mean that a running mean keeps: with 1 it would never change.
constexpr Limits below_one = between(0, 0.999999999);
constexpr Limits ranks = between(1, 1 << 20);
/// Limits above any real training: samples per step, tokens per sample. Their product fits into 64
/// bits.
constexpr Limits samples = between(1, 1 << 24), tokens = between(1, 1 << 20);

/// Reads the fields of a plan that a section of the job states.
class StatedFields {
 public:
  StatedFields(const Config& section, plan::Section which) : c_(section), which_(which) {}

  template <class T>
  void operator()(const char* key, T&& member, const plan::Rule& rule) const {
    if (rule.section == which_) read(key, member, rule);
  }

 private:
  void read(const char* key, bool& member, const plan::Rule&) const {
    member = c_.flag(key, member);
  }
  void read(const char* key, int& member, const plan::Rule& rule) const {
    member = static_cast<int>(c_.integer(key, member, rule.limits));
  }
  void read(const char* key, double& member, const plan::Rule& rule) const {
    member = c_.number(key, member, rule.limits);
  }
  template <class E>
    requires std::is_enum_v<E>
  void read(const char* key, E& member, const plan::Rule&) const {
    member = *from_name<E>(c_.text(key, std::string(name_of(member)), names_of<E>()));
  }
  void read(const char* key, std::optional<bool>& member, const plan::Rule&) const {
    member = c_.maybe_flag(key);
  }
  void read(const char* key, std::optional<double>& member, const plan::Rule& rule) const {
    member = c_.maybe_number(key, rule.limits);
  }
  void read(const char* key, std::optional<Seconds>& member, const plan::Rule& rule) const {
    member = c_.maybe_seconds(key, rule.limits);
  }
  void read(const char* key, std::optional<Bytes>& member, const plan::Rule& rule) const {
    member = c_.maybe_bytes(key, rule.limits);
  }
  template <std::signed_integral I>
  void read(const char* key, std::optional<I>& member, const plan::Rule& rule) const {
    if (const auto value = c_.maybe_integer(key, rule.limits)) member = static_cast<I>(*value);
  }
  template <class E>
    requires std::is_enum_v<E>
  void read(const char* key, std::optional<E>& member, const plan::Rule& rule) const {
    std::vector<std::string> names = names_of<E>();
    if (rule.automatic) {
      names.insert(names.begin(), "automatic");
      member = from_name<E>(c_.text(key, names.front(), names));
    } else if (const auto name = c_.maybe_text(key, names)) {
      member = from_name<E>(*name);
    }
  }
  /// Rules cover scalars; names and lists have readers of their own, such as read_partition.
  template <class T>
  void read(const char* key, T&, const plan::Rule&) const {
    throw ProgramError(fmt::format("no reader for a key like {}", key));
  }

  const Config& c_;
  plan::Section which_;
};

/// All orders of the axes; cp has a place among them where it divides sequences.
std::vector<std::string> orders_of_axes(bool divided) {
  if (!divided) return {"pp,dp,tp", "pp,tp,dp", "dp,pp,tp", "dp,tp,pp", "tp,pp,dp", "tp,dp,pp"};
  std::vector<std::string> all, axes{"cp", "dp", "pp", "tp"};
  do all.push_back(fmt::format("{}", fmt::join(axes, ",")));
  while (std::next_permutation(axes.begin(), axes.end()));
  return all;
}

/// method.shares: "equal", "speed" or the samples of each replica. Reads after method.dp.
void read_shares(const Config& c, JobKeys& keys) {
  std::vector<int>& shares = keys.plan.schedule.shares;
  const std::string word = c.word_or_integers("shares", {"equal", "speed"});
  if (!word.empty()) {
    keys.shares = word == "speed" ? Shares::speed : Shares::equal;
    return;
  }
  for (const std::int64_t share : c.integers("shares", samples))
    shares.push_back(static_cast<int>(share));
  keys.dp_of_shares = !shares.empty() && !keys.dp;
  if (keys.dp_of_shares) keys.dp = static_cast<std::int64_t>(shares.size());
}

void read_partition(const Config& c, plan::Placement& placement) {
  placement.partition = choose<plan::Partition>(c, "partition");
  for (const std::int64_t layers : c.integers("stage_layers", between(0, 1 << 20)))
    placement.stage_layers.push_back(static_cast<int>(layers));
  if (placement.stage_layers.empty()) return;
  if (c.has("partition") && placement.partition != plan::Partition::layers)
    throw c.error("stage_layers", fmt::format("does not combine with method.partition = \"{}\", "
                                              "which counts no layers; leave out one of the two",
                                              name_of(placement.partition)));
  placement.partition = plan::Partition::layers;
}

void read_method(const Config& c, JobKeys& keys) {
  plan::Plan& plan = keys.plan;
  keys.plan_file = c.text("plan", "");
  plan.method = c.text("name", keys.plan_file.empty() ? std::nullopt : std::optional(""s));
  keys.pp = c.maybe_integer("pp", ranks);
  keys.dp = c.maybe_integer("dp", ranks);
  keys.tp = c.maybe_integer("tp", ranks);
  keys.cp = c.maybe_integer("cp", ranks);
  const bool divided = keys.cp.value_or(1) > 1;
  plan.mesh.order = c.text("order", divided ? "pp,dp,cp,tp" : "pp,dp,tp", orders_of_axes(divided));
  keys.micro_batch = c.maybe_integer("micro_batch", samples);
  keys.micro_batches = c.maybe_integer("micro_batches", positive);
  read_shares(c, keys);
  keys.autotune = c.flag("autotune", false);
  const auto precision = choose<Precision>(c, "precision");
  plan.precision = dtype_of(precision), plan.fp8 = precision == Precision::fp8;
  read_partition(c, plan.placement);
  plan::each_field(plan, StatedFields(c, plan::Section::method));
  const plan::Sparsity& sparse = plan.exchange.sparse;
  if (sparse.s_max == 1) throw c.error("s_max", "1 would keep nothing; it must be below 1");
  if (sparse.s_min > sparse.s_max)
    throw c.error("s_min", fmt::format("{} is above method.s_max {}", sparse.s_min, sparse.s_max));
  keys.servers = c.maybe_integer("servers", between(0, 1 << 20));
}

/// A plan file replaces the whole section [method], so any other key there is an error.
void check_plan_alone(const Config& c, const JobKeys& keys) {
  if (keys.plan_file.empty()) return;
  if (!std::filesystem::is_regular_file(keys.plan_file))
    throw c.error("plan", fmt::format("\"{}\" does not exist; `rehearse plan JOB.toml -o FILE` "
                                      "writes a plan",
                                      keys.plan_file));
  for (const std::string& key : c.names())
    if (key == "name")
      throw c.error("plan", fmt::format("\"{}\" and method.name = \"{}\": name one of the two",
                                        keys.plan_file, keys.plan.method));
    else if (key != "plan")
      throw c.error(key, fmt::format("the plan \"{}\" says this: leave it out, or leave out "
                                     "method.plan",
                                     keys.plan_file));
}

/// Pairs of positions: begin, end, begin, end, in order.
std::vector<std::pair<int, int>> read_left_out(const Config& c) {
  const std::vector<std::int64_t> ends = c.integers("left_out", natural);
  if (ends.size() % 2 != 0 || !std::ranges::is_sorted(ends, std::less_equal<>{}))
    throw c.error("left_out",
                  fmt::format("[{}]: must be pairs of positions in rising order: begin, "
                              "end, begin, end",
                              fmt::join(ends, ", ")));
  std::vector<std::pair<int, int>> out;
  for (std::size_t i = 0; i < ends.size(); i += 2)
    out.emplace_back(static_cast<int>(ends[i]), static_cast<int>(ends[i + 1]));
  return out;
}

void read_train(const Config& c, JobKeys& keys) {
  Train& t = keys.train;
  keys.global_batch = c.maybe_integer("global_batch", samples);
  keys.seq_len = c.maybe_integer("seq_len", tokens);
  t.steps = c.integer("steps", t.steps, positive);
  t.seed = static_cast<std::uint64_t>(c.integer("seed", 1, at_least(0)));
  plan::each_field(keys.plan, StatedFields(c, plan::Section::train));
  t.lr = c.number("lr", t.lr, above(0));
  t.beta1 = c.number("beta1", t.beta1, below_one);
  t.beta2 = c.number("beta2", t.beta2, below_one);
  t.eps = c.number("eps", t.eps, above(0));
  t.momentum = c.number("momentum", t.momentum, limits::part);
  t.weight_decay = c.number("weight_decay", t.weight_decay, at_least(0));
  keys.warmup_steps = c.maybe_integer("warmup_steps", natural);
  t.decay = choose<Decay>(c, "schedule");
  t.min_lr = c.number("min_lr", t.min_lr, at_least(0));
  t.clip = c.number("clip", t.clip, at_least(0));
  t.eval_every = c.integer("eval_every", t.eval_every, natural);
  t.eval_batches = c.integer("eval_batches", t.eval_batches, positive);
  t.save_every = c.integer("save_every", t.save_every, natural);
  t.data = c.text("data", "");
  t.split = choose<Split>(c, "split");
  t.clients = static_cast<int>(c.integer("clients", 0, between(0, 1'000'000)));
  t.evaluate = c.texts("evaluate");
  t.out = c.text("out", "out");
  t.left_out = read_left_out(c);
}

void read_adaptive(const Config& c, Adaptive& a, std::optional<std::int64_t>& warmup_steps) {
  warmup_steps = c.maybe_integer("warmup_steps", positive);
  a.warmup_plan = c.text("warmup_plan", "");
  a.balance_every = c.integer("balance_every", a.balance_every, natural);
  a.balance_bound = c.number("balance_bound", a.balance_bound, between(0, 1));
  a.placement = c.flag("placement", a.placement);
  a.plan_timeout = c.seconds("plan_timeout", a.plan_timeout, limits::patience);
}

void read_run(const Config& c, Run& run) {
  run.timeout = c.seconds("timeout", run.timeout, limits::patience);
  run.connect_timeout = c.seconds("connect_timeout", run.connect_timeout, limits::patience);
  const Seconds longest = longest_heartbeat(run.timeout);
  run.heartbeat = c.seconds("heartbeat", std::min(run.heartbeat, longest),
                            {.least = 0, .most = limits::patience.most, .open = true});
  run.threads = static_cast<int>(c.integer("threads", 0, natural));
  run.log_every = c.integer("log_every", run.log_every, positive);
  run.check_every = c.integer("check_every", run.check_every, natural);
  run.transport = choose<Transport>(c, "transport");
  run.interface = c.text("interface", "");
  run.secret_file = c.text("secret_file", "");
  run.trust_network = c.flag("trust_network", false);
  run.encrypt = c.flag("encrypt", false);
  run.device = c.text("device", run.device);
  if (run.encrypt && run.transport == Transport::gloo)
    throw c.error("encrypt",
                  "gloo opens connections of its own, which it cannot encrypt; leave run.transport "
                  "at sockets");
  if (run.heartbeat > longest)
    throw c.error("heartbeat",
                  fmt::format("{} must be at most a quarter of run.timeout {}, or a healthy peer "
                              "looks dead; at most {}",
                              to_text(run.heartbeat), to_text(run.timeout), to_text(longest)));
}

void read_disturb(const Config& c, cluster::Disturbance& d) {
  d.seed = static_cast<std::uint64_t>(c.integer("seed", 1, at_least(0)));
  d.compute_sigma = c.number("compute_jitter", 0, between(0, cluster::most_jitter));
  for (const Config& s : c.sections("stragglers"))
    d.stragglers.push_back({static_cast<Id>(s.integer("rank", std::nullopt, natural)),
                            s.number("factor", std::nullopt, limits::factor)});
  d.straggler_probability = c.number("straggler_probability", 0, between(0, 1));
  d.straggler_factor = c.number("straggler_factor", d.straggler_factor, limits::factor);
  d.link_sigma = c.number("link_jitter", 0, between(0, cluster::most_jitter));
  for (const Config& s : c.sections("slow_links"))
    d.slow_links.push_back(
        {s.text("link", std::nullopt), s.number("factor", std::nullopt, limits::factor)});
}

}  // namespace

JobKeys read_keys(const Config& file) {
  check_kind(file, FileKind::job);
  JobKeys keys;
  // Touches every known section, so that file.finish() reports any other one as misspelt.
  for (const char* known : {"model", "cluster", "software", "method", "train", "adaptive", "run",
                            "disturb", "faults", "checkpoint", "recovery"})
    file.section(known);
  keys.model = file.section("model").text("name", std::nullopt);
  keys.model_changes = model::read_changes(file.section("model"));
  const Config cluster = file.section("cluster");
  keys.cluster = cluster.text("name", std::nullopt);
  keys.world_size = cluster.maybe_integer("world_size", ranks);
  keys.devices = cluster.texts("devices");
  cluster.texts("prices");  // known; cluster::set_prices reads it once there is a cluster
  keys.memory_reserve = cluster.maybe_bytes("memory_reserve", limits::reserve);
  keys.profile = cluster.text("profile", "");
  keys.platform = cluster::read_platform_changes(cluster);
  keys.software = software::read_section(file.section("software"));
  read_method(file.section("method"), keys);
  read_train(file.section("train"), keys);
  read_adaptive(file.section("adaptive"), keys.adaptive, keys.adaptive_warmup_steps);
  read_run(file.section("run"), keys.run);
  read_disturb(file.section("disturb"), keys.disturb);
  keys.faults = read_fault_keys(file.section("faults"));
  keys.checkpoint = read_checkpoint_keys(file.section("checkpoint"));
  keys.recovery = read_recovery_keys(file.section("recovery"));
  file.finish();
  check_plan_alone(file.section("method"), keys);
  return keys;
}

std::string beside_job(const Config& file, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path beside = fs::path(file.file()).parent_path() / path;
  const bool meant = !path.empty() && fs::path(path).is_relative() && !fs::exists(path, error) &&
                     fs::is_regular_file(beside, error);
  return meant ? fmt::format("; beside the job is \"{}\"", beside.string()) : "";
}

model::ModelSpec model_of(const Config& file, const JobKeys& keys) {
  const Config model = file.section("model"), train = file.section("train");
  try {
    return model::load_model(keys.model, static_cast<int>(keys.seq_len.value_or(0)),
                             keys.model_changes);
  } catch (const Refused& refused) {
    const std::string key = refused.refusal.key.substr(std::string("model.").size());
    if (key == "seq_len" && keys.seq_len) throw train.error(key, refused.what());
    if (model.has(key)) throw model.error(key, refused.what());
    const auto& changed = keys.model_changes.sizes;
    throw model.error(changed.empty() ? "name" : changed.back().first, refused.what());
  } catch (const InputError& error) {
    throw model.error("name", error.what() + beside_job(file, keys.model));
  }
}

std::vector<Config::Key> job_keys() {
  const Config file = Config::parse(R"(
    model.name = "any"
    cluster.name = "any"
    method.name = "any"
    [disturb]
    stragglers = [{ rank = 0, factor = 2 }]
    slow_links = [{ link = "any", factor = 2 }]
  )",
                                    "keys");
  read_keys(file);
  return file.keys();
}

}  // namespace rehearse::job
