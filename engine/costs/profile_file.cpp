// Writes and reads a profile as JSON. The reader is strict: a misspelt or missing key is an error,
// never a zero. It also reads version 2 (connections in the clear) and version 1 (one device kind
// for the file, no pairs, no variances).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/files/foreign.h"
#include "engine/base/files/json_reader.h"
#include "engine/base/files/json_text.h"
#include "engine/base/fnv.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"
#include "engine/costs/profile.h"

namespace rehearse::costs {
namespace {

using Json = nlohmann::ordered_json;

using Reader = JsonReader;

/// Bytes/s. The least is a platform's least bandwidth (1e3) at its least efficiency (1e-6).
constexpr Limits measured_rate = between(1e-3, limits::bandwidth.most);
constexpr Limits measured_spread = between(0, limits::bandwidth.most);

double number(Reader& in, const char* key, Limits limits) {
  const double value = in.number(key);
  if (value < limits.least || value > limits.most)
    in.fail(
        fmt::format("\"{}\" = {}: must be from {} to {}", key, value, limits.least, limits.most));
  return value;
}

/// Reads the lists of times. `kind` reads the device kind of an entry.
template <class F>
void read_times(Reader& in, F kind, Profile& p) {
  in.list("segments", [&](Reader& r) {
    p.segments.push_back({.model = r.text("model"),
                          .kind = r.choice<model::SegmentKind>("kind"),
                          .pass = r.choice<program::Pass>("pass"),
                          .samples = r.integer("samples"),
                          .seq_len = r.integer("seq_len"),
                          .tp = r.integer("tp"),
                          .dtype = r.choice<program::DType>("dtype"),
                          .seconds = number(r, "seconds", limits::latency),
                          .device_kind = kind(r)});
  });
  in.list("updates", [&](Reader& r) {
    p.updates.push_back({.optimizer = r.choice<plan::Optimizer>("optimizer"),
                         .dtype = r.choice<program::DType>("dtype"),
                         .seconds_per_element = number(r, "seconds_per_element", limits::latency),
                         .launch = number(r, "launch", limits::latency),
                         .device_kind = kind(r)});
  });
  in.list("kernels", [&](Reader& r) {
    p.kernels.push_back({.kind = r.choice<program::KernelKind>("kind"),
                         .bytes_per_second = number(r, "bytes_per_second", measured_rate),
                         .launch = number(r, "launch", limits::latency),
                         .device_kind = kind(r)});
  });
  in.list("collectives", [&](Reader& r) {
    p.collectives.push_back({.move = r.choice<program::Move>("move"),
                             .members = r.integer("members"),
                             .bytes = r.integer<std::int64_t>("bytes"),
                             .seconds = number(r, "seconds", limits::latency),
                             .device_kind = kind(r)});
  });
  in.list("transfers", [&](Reader& r) {
    p.transfers.push_back({.bytes = r.integer<std::int64_t>("bytes"),
                           .seconds = number(r, "seconds", limits::latency),
                           .device_kind = kind(r)});
  });
}

std::uint64_t read_hash(Reader& in, const char* key) {
  const std::string text = in.text(key);
  std::uint64_t out = 0;
  const bool hex = text.size() == 16 && text.find_first_not_of("0123456789abcdef") == text.npos;
  if (!text.empty() && !hex)
    in.fail(fmt::format("\"{}\" = \"{}\": must be 16 hexadecimal digits or empty", key, text));
  if (!text.empty()) out = std::stoull(text, nullptr, 16);
  return out;
}

void read_pairs(Reader& in, Profile& p) {
  in.list("pairs", [&](Reader& r) {
    const PairTime pair{.from = r.integer<Id>("from"),
                        .to = r.integer<Id>("to"),
                        .latency = number(r, "latency", limits::latency),
                        .latency_spread = number(r, "latency_spread", limits::latency),
                        .bandwidth = number(r, "bandwidth", measured_rate),
                        .bandwidth_spread = number(r, "bandwidth_spread", measured_spread)};
    if (pair.from == pair.to) r.fail(fmt::format("device {} is paired with itself", pair.from));
    p.pairs.push_back(pair);
  });
  std::ranges::sort(p.pairs, {}, [](const PairTime& t) { return std::pair(t.from, t.to); });
  if (!p.pairs.empty() && p.cluster_hash == 0)
    in.fail("\"cluster_hash\" is empty: pairs need the cluster whose devices they name");
}

void read_variances(Reader& in, Profile& p) {
  in.list("variances", [&](Reader& r) {
    p.variances.push_back({.model = r.text("model"),
                           .segment = r.integer<Id>("segment"),
                           .elements = r.integer<std::int64_t>("elements"),
                           .observed_steps = r.integer("steps"),
                           .total = r.number("total"),
                           .per_element = r.number("per_element"),
                           .square_norm = r.number("square_norm"),
                           .observed = r.integer<std::int64_t>("observed")});
  });
}

}  // namespace

std::string to_json(const Profile& p) {
  Json out;
  out["profile_version"] = Profile::version;
  out["host"] = p.host;
  out["simulated"] = p.simulated;
  out["encrypted"] = p.encrypted;
  out["cores"] = p.cores;
  out["ranks"] = p.ranks;
  out["threads_per_rank"] = p.threads_per_rank;
  out["cpu_seconds_per_byte"] = p.cpu_seconds_per_byte;
  out["cluster"] = p.cluster;
  out["cluster_hash"] = p.cluster_hash == 0 ? "" : hash_text(p.cluster_hash);
  for (const char* list :
       {"segments", "updates", "kernels", "collectives", "transfers", "pairs", "variances"})
    out[list] = Json::array();
  for (const SegmentTime& s : p.segments)
    out["segments"].push_back({{"device_kind", s.device_kind},
                               {"model", s.model},
                               {"kind", name_of(s.kind)},
                               {"pass", name_of(s.pass)},
                               {"samples", s.samples},
                               {"seq_len", s.seq_len},
                               {"tp", s.tp},
                               {"dtype", name_of(s.dtype)},
                               {"seconds", s.seconds}});
  for (const UpdateTime& u : p.updates)
    out["updates"].push_back({{"device_kind", u.device_kind},
                              {"optimizer", name_of(u.optimizer)},
                              {"dtype", name_of(u.dtype)},
                              {"seconds_per_element", u.seconds_per_element},
                              {"launch", u.launch}});
  for (const KernelRate& k : p.kernels)
    out["kernels"].push_back({{"device_kind", k.device_kind},
                              {"kind", name_of(k.kind)},
                              {"bytes_per_second", k.bytes_per_second},
                              {"launch", k.launch}});
  for (const CollectiveTime& c : p.collectives)
    out["collectives"].push_back({{"device_kind", c.device_kind},
                                  {"move", name_of(c.move)},
                                  {"members", c.members},
                                  {"bytes", c.bytes},
                                  {"seconds", c.seconds}});
  for (const TransferTime& t : p.transfers)
    out["transfers"].push_back(
        {{"device_kind", t.device_kind}, {"bytes", t.bytes}, {"seconds", t.seconds}});
  for (const PairTime& t : p.pairs)
    out["pairs"].push_back({{"from", t.from},
                            {"to", t.to},
                            {"latency", t.latency},
                            {"latency_spread", t.latency_spread},
                            {"bandwidth", t.bandwidth},
                            {"bandwidth_spread", t.bandwidth_spread}});
  for (const tensors::LayerVariance& v : p.variances)
    out["variances"].push_back({{"model", v.model},
                                {"segment", v.segment},
                                {"elements", v.elements},
                                {"observed", v.observed},
                                {"steps", v.observed_steps},
                                {"total", v.total},
                                {"per_element", v.per_element},
                                {"square_norm", v.square_norm}});
  return out.dump(1) + "\n";
}

Profile parse_profile(const std::string& text, const std::string& source) {
  refuse_measurements(text, source);
  Json json;
  try {
    json = parse_json(text, source);
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("{}; rehearse profile -o FILE writes a profile, which is JSON", error.what()));
  }
  Reader in(json, source);
  const int version = in.integer("profile_version");
  if (version < 1 || version > Profile::version)
    in.fail(
        fmt::format("profile_version = {}: this program reads versions 1 to {}; measure again with "
                    "rehearse profile",
                    version, Profile::version));
  Profile p;
  p.host = in.text("host");
  p.cores = in.integer("cores");
  p.ranks = in.integer("ranks");
  p.threads_per_rank = in.integer("threads_per_rank");
  p.cpu_seconds_per_byte = number(in, "cpu_seconds_per_byte", limits::latency);
  if (version == 1) {
    const std::string kind = in.text("device_kind");
    read_times(
        in, [&](Reader&) { return kind; }, p);
  } else {
    p.simulated = in.truth("simulated");
    if (version > 2) p.encrypted = in.truth("encrypted");
    p.cluster = in.text("cluster");
    p.cluster_hash = read_hash(in, "cluster_hash");
    read_times(
        in, [](Reader& r) { return r.text("device_kind"); }, p);
    read_pairs(in, p);
    read_variances(in, p);
  }
  in.done();
  if (const std::string twice = measured_twice(p); !twice.empty())
    in.fail(twice + " stands there twice");
  return p;
}

Profile load_profile(const std::string& path) {
  if (!std::filesystem::is_regular_file(path))
    throw InputError(
        fmt::format("{}: cannot be read; rehearse profile -o FILE writes a profile", path));
  return parse_profile(read_file(path), path);
}

}  // namespace rehearse::costs
