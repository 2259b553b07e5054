#include "study/parts/collective_study.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/collectives/schedule.h"
#include "engine/costs/costs.h"
#include "engine/costs/network/collective_prices.h"
#include "engine/costs/network/in_network.h"
#include "engine/costs/network/library_collective.h"
#include "engine/software/software.h"

namespace rehearse::study {
namespace {

/// "8": the first eight devices; "0-3,6": these devices.
std::vector<Id> read_ranks(const Config& c, std::size_t devices) {
  const std::string text =
      c.text("ranks", fmt::format("{}", std::min(devices, most_collective_ranks)));
  const auto wrong = [&](const std::string& why) {
    return c.error("ranks", fmt::format("\"{}\": {}; give a number of ranks, as in 8, or devices, "
                                        "as in 0-3,6",
                                        text, why));
  };
  const auto number = [&](std::string_view part) {
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc{} || end != part.data() + part.size())
      throw wrong(fmt::format("\"{}\" is not a number", part));
    return value;
  };
  std::vector<Id> out;
  if (text.find_first_of(",-") == std::string::npos) {
    const std::size_t count = number(text);
    if (count > devices) throw wrong(fmt::format("the cluster has {} devices", devices));
    out.resize(count);
    std::iota(out.begin(), out.end(), Id{0});
  } else {
    std::set<std::size_t> seen;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      const std::string part = text.substr(begin, end - begin);
      const std::size_t dash = part.find('-');
      const std::size_t first = number(part.substr(0, dash));
      const std::size_t last = dash == std::string::npos ? first : number(part.substr(dash + 1));
      if (last < first) throw wrong(fmt::format("{} is above {}", first, last));
      if (last >= devices)
        throw wrong(fmt::format("there is no device {}; the last is {}", last, devices - 1));
      for (std::size_t i = first; i <= last; ++i) {
        if (!seen.insert(i).second) throw wrong(fmt::format("device {} is named twice", i));
        out.push_back(static_cast<Id>(i));
      }
      begin = end + 1;
    }
  }
  if (out.size() < 2 || out.size() > most_collective_ranks)
    throw wrong(fmt::format("a collective needs 2 to {} ranks", most_collective_ranks));
  return out;
}

CollectiveWay way_of(const costs::LibraryCollective& one) {
  return {.algorithm = one.algorithm, .protocol = one.protocol->name, .seconds = one.seconds};
}

void answer_by_library(const CollectiveQuestion& q, double bytes, CollectiveAnswer& out) {
  for (const costs::LibraryCollective& one :
       costs::library_choices(q.cluster, q.move, bytes, q.devices))
    out.ways.push_back(way_of(one));
  out.chosen = way_of(
      costs::library_collective(q.cluster, q.move, q.algorithm, bytes, q.devices, 0, q.protocol));
  if (q.algorithm == program::Algorithm::automatic || out.chosen.algorithm == q.algorithm) return;
  std::set<std::string_view> known;
  for (const CollectiveWay& way : out.ways) known.insert(name_of(way.algorithm));
  const std::string why = q.algorithm == program::Algorithm::in_network
                              ? costs::why_not_in_network(q.cluster, q.devices)
                              : "";
  throw InputError(fmt::format("algorithm \"{}\" does not serve {} of these ranks; {} do{}{}{}",
                               name_of(q.algorithm), name_of(q.move), fmt::join(known, ", "),
                               known.size() == 1 ? "es" : "", why.empty() ? "" : " (",
                               why.empty() ? "" : why + ")"));
}

void answer_in_rounds(const CollectiveQuestion& q, CollectiveAnswer& out) {
  if (!q.protocol.empty())
    throw InputError(
        fmt::format("protocol \"{}\": the library of software {} has no protocols for {}",
                    q.protocol, q.software, name_of(q.move)));
  costs::CollectivePrices prices(q.cluster);
  // A rotate is priced to the next member.
  const Id group =
      prices.groups({q.devices}, {q.move == program::Move::rotate && q.devices.size() > 1 ? 1 : 0});
  const program::Algorithm chosen = q.algorithm == program::Algorithm::automatic
                                        ? prices.fastest(group, q.move, out.elements, q.dtype)
                                        : q.algorithm;
  const bool several_nodes = prices.several_nodes(group);
  const bool switches = several_nodes && prices.why_not_in_network(group).empty() &&
                        collectives::serves(program::Algorithm::in_network, q.move);
  for (const program::Algorithm one :
       {program::Algorithm::ring, program::Algorithm::double_tree,
        program::Algorithm::halving_doubling, program::Algorithm::hierarchical,
        program::Algorithm::direct, program::Algorithm::in_network}) {
    const bool wanted = one == chosen;
    const bool possible = one == program::Algorithm::in_network
                              ? switches
                              : costs::considered(q.cluster, one, q.move, several_nodes);
    if (!wanted && !possible) continue;
    out.ways.push_back({.algorithm = one,
                        .seconds = prices.seconds(group, q.move, one, out.elements, q.dtype)[0]});
    if (wanted) out.chosen = out.ways.back();
  }
}

double bus_factor(program::Move move, double n) {
  switch (move) {
    case program::Move::all_reduce:
      return 2 * (n - 1) / n;
    case program::Move::reduce_scatter:
    case program::Move::all_gather:
    case program::Move::all_to_all:
    case program::Move::gather:
    case program::Move::scatter:
      return (n - 1) / n;
    default:
      return 1;
  }
}

}  // namespace

CollectiveQuestion read_collective(const Config& file) {
  CollectiveQuestion q;
  const Config c = file.section("collective");
  const std::string cluster = c.text("cluster", std::nullopt);
  try {
    q.cluster = cluster::load_cluster(cluster);
  } catch (const InputError& error) {
    throw c.error("cluster", error.what());
  }
  q.move = *from_name<program::Move>(c.text("move", "all_reduce", names_of<program::Move>()));
  q.dtype = *from_name<program::DType>(c.text("dtype", "f32", {"f32", "f16", "bf16"}));
  q.algorithm = *from_name<program::Algorithm>(
      c.text("algorithm", "automatic", names_of<program::Algorithm>()));
  q.protocol = c.text("protocol", "");
  q.bytes = static_cast<std::int64_t>(c.bytes("bytes", Bytes(1 << 20), between(1, 1e13)).value);
  q.devices = read_ranks(c, q.cluster.devices().size());
  const software::Software software = software::read_section(file.section("software"));
  file.finish();
  q.software = software.name;
  q.cluster.use_library(software.library);
  if (!software.library.runs_sums_of(q.algorithm))
    throw c.error("algorithm",
                  fmt::format("{} is not in the library of software {} ({})", name_of(q.algorithm),
                              software.name, software.library.name));
  return q;
}

CollectiveAnswer predict_collective(const CollectiveQuestion& q) {
  CollectiveAnswer out{.bytes = q.bytes,
                       .elements = std::max<std::int64_t>(1, q.bytes / size_of(q.dtype))};
  if (q.move == program::Move::all_to_all || parts_of_root(q.move)) {  // equal, as in nccl-tests
    const auto n = static_cast<std::int64_t>(q.devices.size());
    out.elements = std::max<std::int64_t>(1, out.elements / n) * n;
    out.bytes = out.elements * size_of(q.dtype);
  }
  if (!q.cluster.library().protocols.empty() && costs::library_runs(q.cluster, q.algorithm, q.move))
    answer_by_library(q, static_cast<double>(out.elements * size_of(q.dtype)), out);
  else
    answer_in_rounds(q, out);
  out.algorithm_bandwidth = static_cast<double>(out.bytes) / out.chosen.seconds;
  out.bus_bandwidth =
      out.algorithm_bandwidth * bus_factor(q.move, static_cast<double>(q.devices.size()));
  return out;
}

nlohmann::ordered_json to_json(const CollectiveAnswer& a) {
  using Json = nlohmann::ordered_json;
  const auto json_of = [](const CollectiveWay& way) {
    return Json{{"algorithm", name_of(way.algorithm)},
                {"protocol", way.protocol},
                {"seconds", way.seconds}};
  };
  Json out{{"bytes", a.bytes}, {"elements", a.elements}};
  out.update(json_of(a.chosen));
  out["algorithm_bandwidth"] = a.algorithm_bandwidth;
  out["bus_bandwidth"] = a.bus_bandwidth;
  for (const CollectiveWay& way : a.ways) out["ways"].push_back(json_of(way));
  return out;
}

}  // namespace rehearse::study
