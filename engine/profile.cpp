#include "engine/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "engine/errors.h"

namespace rehearse {
namespace {

using Json = nlohmann::ordered_json;

// Names in the file, by value of the enumeration.
const std::vector<std::string> kind_names = {"embedding", "attention", "mlp", "head"};
const std::vector<std::string> pass_names = {"forward", "backward", "recompute"};
const std::vector<std::string> dtype_names = {"f32", "bf16", "f16", "i32", "u8"};
const std::vector<std::string> optimizer_names = {"adamw", "sgd"};
const std::vector<std::string> kernel_names = {"measure",     "rescale", "select",
                                               "scatter_add", "cast",    "observe"};
const std::vector<std::string> move_names = {"all_reduce", "reduce_scatter", "all_gather",
                                             "broadcast", "reduce"};

template <class E>
const std::string& name_of(const std::vector<std::string>& names, E value) {
  return names.at(static_cast<std::size_t>(value));
}

// One JSON object being read: knows where it is, and which keys nobody asked for.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) fail("must be an object");
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: {}", where_, what));
  }
  const Json& at(const char* key) {
    known_.insert(key);
    auto it = json_.find(key);
    if (it == json_.end()) fail(fmt::format("\"{}\" is missing", key));
    return *it;
  }
  double number(const char* key) {
    const Json& v = at(key);
    if (!v.is_number() || !std::isfinite(v.get<double>()) || v.get<double>() < 0)
      fail(fmt::format("\"{}\" = {}: must be a number >= 0", key, v.dump()));
    return v.get<double>();
  }
  template <class T = int>
  T integer(const char* key) {
    const Json& v = at(key);
    if (!v.is_number_integer() || v.get<std::int64_t>() < 0)
      fail(fmt::format("\"{}\" = {}: must be a whole number >= 0", key, v.dump()));
    return v.get<T>();
  }
  std::string text(const char* key) {
    const Json& v = at(key);
    if (!v.is_string()) fail(fmt::format("\"{}\" = {}: must be text", key, v.dump()));
    return v.get<std::string>();
  }
  template <class E>
  void choice(const char* key, const std::vector<std::string>& names, E& out) {
    const std::string value = text(key);
    auto it = std::find(names.begin(), names.end(), value);
    if (it == names.end()) {
      const std::string near = nearest(value, names);
      fail(fmt::format("\"{}\" = \"{}\": unknown; known are {}{}", key, value,
                       fmt::join(names, ", "),
                       near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near)));
    }
    out = static_cast<E>(it - names.begin());
  }
  template <class F>
  void list(const char* key, F each) {
    const Json& v = at(key);
    if (!v.is_array()) fail(fmt::format("\"{}\" must be a list", key));
    for (std::size_t i = 0; i < v.size(); ++i) {
      Reader reader(v[i], fmt::format("{}: {}[{}]", where_, key, i));
      each(reader);
      reader.done();
    }
  }
  void done() const {
    for (const auto& [key, value] : json_.items())
      if (!known_.count(key)) {
        const std::string near = nearest(key, {known_.begin(), known_.end()});
        fail(fmt::format("unknown key \"{}\"{}", key,
                         near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
      }
  }

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string> known_ = {};
};

using Point = std::pair<double, double>;

// Straight lines between points sorted by x. Empty when there are none.
std::optional<double> interpolate(std::vector<Point> points, double x, bool flat_below) {
  if (points.empty()) return std::nullopt;
  std::sort(points.begin(), points.end());
  const Point first = points.front(), last = points.back();
  if (x <= first.first) {
    if (flat_below || first.first == 0) return first.second;
    return first.second * x / first.first;
  }
  if (x >= last.first) return last.first == 0 ? last.second : last.second * x / last.first;
  auto hi = std::upper_bound(points.begin(), points.end(), Point{x, HUGE_VAL});
  auto lo = hi - 1;
  if (hi == points.end() || hi->first == lo->first) return lo->second;
  return lo->second + (hi->second - lo->second) * (x - lo->first) / (hi->first - lo->first);
}

}  // namespace

std::optional<double> Profile::segment_seconds(const std::string& model, SegmentKind kind,
                                               Pass pass, int samples, int seq_len, int tp,
                                               DType dtype) const {
  std::vector<Point> points;
  for (const SegmentTime& s : segments)
    if (s.model == model && s.kind == kind && s.pass == pass && s.tp == tp && s.dtype == dtype)
      points.emplace_back(static_cast<double>(s.samples) * s.seq_len, s.seconds);
  return interpolate(std::move(points), static_cast<double>(samples) * seq_len, false);
}

std::optional<double> Profile::update_seconds(Optimizer optimizer, DType dtype,
                                              std::int64_t elements) const {
  for (const UpdateTime& u : updates)
    if (u.optimizer == optimizer && u.dtype == dtype)
      return u.launch + u.seconds_per_element * static_cast<double>(elements);
  return std::nullopt;
}

std::optional<double> Profile::kernel_seconds(Local kind, std::int64_t bytes) const {
  for (const KernelRate& k : kernels)
    if (k.kind == kind && k.bytes_per_second > 0)
      return k.launch + static_cast<double>(bytes) / k.bytes_per_second;
  return std::nullopt;
}

std::optional<double> Profile::collective_seconds(Move move, int members,
                                                  std::int64_t bytes) const {
  std::vector<Point> points;
  for (const CollectiveTime& c : collectives)
    if (c.move == move && c.members == members)
      points.emplace_back(static_cast<double>(c.bytes), c.seconds);
  return interpolate(std::move(points), static_cast<double>(bytes), true);
}

std::optional<double> Profile::transfer_seconds(std::int64_t bytes) const {
  std::vector<Point> points;
  points.reserve(transfers.size());
  for (const TransferTime& t : transfers)
    points.emplace_back(static_cast<double>(t.bytes), t.seconds);
  return interpolate(std::move(points), static_cast<double>(bytes), true);
}

std::string to_json(const Profile& p) {
  Json out;
  out["profile_version"] = Profile::version;
  out["host"] = p.host;
  out["device_kind"] = p.device_kind;
  out["cores"] = p.cores;
  out["ranks"] = p.ranks;
  out["threads_per_rank"] = p.threads_per_rank;
  out["cpu_seconds_per_byte"] = p.cpu_seconds_per_byte;
  for (const char* list : {"segments", "updates", "kernels", "collectives", "transfers"})
    out[list] = Json::array();
  for (const SegmentTime& s : p.segments)
    out["segments"].push_back({{"model", s.model},
                               {"kind", name_of(kind_names, s.kind)},
                               {"pass", name_of(pass_names, s.pass)},
                               {"samples", s.samples},
                               {"seq_len", s.seq_len},
                               {"tp", s.tp},
                               {"dtype", name_of(dtype_names, s.dtype)},
                               {"seconds", s.seconds}});
  for (const UpdateTime& u : p.updates)
    out["updates"].push_back({{"optimizer", name_of(optimizer_names, u.optimizer)},
                              {"dtype", name_of(dtype_names, u.dtype)},
                              {"seconds_per_element", u.seconds_per_element},
                              {"launch", u.launch}});
  for (const KernelRate& k : p.kernels)
    out["kernels"].push_back({{"kind", name_of(kernel_names, k.kind)},
                              {"bytes_per_second", k.bytes_per_second},
                              {"launch", k.launch}});
  for (const CollectiveTime& c : p.collectives)
    out["collectives"].push_back({{"move", name_of(move_names, c.move)},
                                  {"members", c.members},
                                  {"bytes", c.bytes},
                                  {"seconds", c.seconds}});
  for (const TransferTime& t : p.transfers)
    out["transfers"].push_back({{"bytes", t.bytes}, {"seconds", t.seconds}});
  return out.dump(1) + "\n";
}

Profile parse_profile(const std::string& text, const std::string& source) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    throw InputError(fmt::format("{}: not a profile: {}", source, e.what()));
  }
  Reader in(json, source);
  const int version = in.integer("profile_version");
  if (version != Profile::version)
    in.fail(
        fmt::format("profile_version = {}: this program reads version {}; measure again with "
                    "rehearse profile",
                    version, Profile::version));
  Profile p;
  p.host = in.text("host");
  p.device_kind = in.text("device_kind");
  p.cores = in.integer("cores");
  p.ranks = in.integer("ranks");
  p.threads_per_rank = in.integer("threads_per_rank");
  p.cpu_seconds_per_byte = in.number("cpu_seconds_per_byte");
  in.list("segments", [&](Reader& r) {
    SegmentTime s;
    s.model = r.text("model");
    r.choice("kind", kind_names, s.kind);
    r.choice("pass", pass_names, s.pass);
    s.samples = r.integer("samples");
    s.seq_len = r.integer("seq_len");
    s.tp = r.integer("tp");
    r.choice("dtype", dtype_names, s.dtype);
    s.seconds = r.number("seconds");
    p.segments.push_back(s);
  });
  in.list("updates", [&](Reader& r) {
    UpdateTime u;
    r.choice("optimizer", optimizer_names, u.optimizer);
    r.choice("dtype", dtype_names, u.dtype);
    u.seconds_per_element = r.number("seconds_per_element");
    u.launch = r.number("launch");
    p.updates.push_back(u);
  });
  in.list("kernels", [&](Reader& r) {
    KernelRate k;
    r.choice("kind", kernel_names, k.kind);
    k.bytes_per_second = r.number("bytes_per_second");
    k.launch = r.number("launch");
    p.kernels.push_back(k);
  });
  in.list("collectives", [&](Reader& r) {
    CollectiveTime c;
    r.choice("move", move_names, c.move);
    c.members = r.integer("members");
    c.bytes = r.integer<std::int64_t>("bytes");
    c.seconds = r.number("seconds");
    p.collectives.push_back(c);
  });
  in.list("transfers", [&](Reader& r) {
    TransferTime t;
    t.bytes = r.integer<std::int64_t>("bytes");
    t.seconds = r.number("seconds");
    p.transfers.push_back(t);
  });
  in.done();
  return p;
}

Profile load_profile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf()))
    throw InputError(
        fmt::format("{}: cannot be read; rehearse profile -o FILE writes a profile", path));
  return parse_profile(text.str(), path);
}

}  // namespace rehearse
