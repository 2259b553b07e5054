// `rehearse collective`: the time and bandwidth of one collective by size, in the columns of
// nccl-tests, with the algorithm and protocol that the communication library would take.
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <map>
#include <memory>

#include "cli/console/command.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "study/parts/collective_study.h"

namespace rehearse::cli {
namespace {

struct CollectiveOptions {
  std::string move = "all_reduce", bytes = "1KiB:1GiB", cluster = {}, software = "pytorch-2";
  std::string ranks = {}, algorithm = "automatic", protocol = {}, dtype = "f32", output = {};
  double factor = 2;
  bool ways = false;
};

constexpr std::size_t most_sizes = 1000;

/// "1KiB:1GiB" -> sizes from the first to the last, each `factor` times the one before; "1MiB" ->
/// one size.
std::vector<std::int64_t> sizes_of(const CollectiveOptions& options) {
  const auto parse = [&](const std::string& text) {
    try {
      // Plain numbers are bytes, as with nccl-tests.
      const bool plain = text.find_first_not_of("0123456789") == std::string::npos;
      const double value = parse_bytes(plain ? text + "B" : text).value;
      if (value >= 1 && value <= 1e13) return value;
    } catch (const InputError&) {
    }
    throw InputError(
        fmt::format("--bytes {}: \"{}\" is not a size from 1 B to 10 TB; give one, as "
                    "in 1MiB, or a range, as in 1KiB:1GiB",
                    options.bytes, text));
  };
  const std::size_t colon = options.bytes.find(':');
  const double first = parse(options.bytes.substr(0, colon));
  const double last = colon == std::string::npos ? first : parse(options.bytes.substr(colon + 1));
  if (last < first)
    throw InputError(fmt::format("--bytes {}: the first size is above the last", options.bytes));
  std::vector<std::int64_t> out;
  for (double size = first; size <= last * (1 + 1e-9); size *= options.factor) {
    out.push_back(std::llround(size));
    if (out.size() > most_sizes)
      throw InputError(fmt::format("--factor {}: more than {} sizes; a larger factor needs fewer",
                                   options.factor, most_sizes));
  }
  return out;
}

/// An error about a key that an option has set, as an error about the option.
std::string about_option(const std::string& text) {
  constexpr std::string_view set = "--set collective.", key = ": key \"";
  const std::size_t equals = text.find('='), after = text.find(key), none = std::string::npos;
  if (!text.starts_with(set) || equals > after || after == none) return text;
  const std::size_t rest = text.find('"', after + key.size());
  return fmt::format("--{} {}{}", text.substr(set.size(), equals - set.size()),
                     text.substr(equals + 1, after - equals - 1), text.substr(rest + 1));
}

study::CollectiveQuestion question_of(const Context& context, const CollectiveOptions& options) {
  for (const std::string& one : context.set)
    if (!one.starts_with("software."))
      throw InputError(fmt::format("--set {}: with collective only keys of [software] count", one));
  std::vector<std::string> set{
      "collective.cluster=" + options.cluster, "collective.move=" + options.move,
      "collective.dtype=" + options.dtype, "collective.algorithm=" + options.algorithm,
      "software.name=" + options.software};
  if (!options.ranks.empty()) set.push_back(fmt::format("collective.ranks=\"{}\"", options.ranks));
  if (!options.protocol.empty())
    set.push_back(fmt::format("collective.protocol=\"{}\"", options.protocol));
  set.insert(set.end(), context.set.begin(), context.set.end());
  try {
    return study::read_collective(Config::parse("", "rehearse collective", set));
  } catch (const InputError& error) {
    throw InputError(about_option(error.what()));
  }
}

std::string gigabytes(double bytes_per_second) {
  return fmt::format("{:.2f}", bytes_per_second / 1e9);
}

/// A line that says how many of the cluster's devices take part, where nobody asked for fewer than
/// all; else empty.
std::string left_out(const study::CollectiveQuestion& q, const CollectiveOptions& options) {
  const std::size_t devices = q.cluster.devices().size();
  if (!options.ranks.empty() || q.devices.size() == devices) return "";
  return fmt::format("the first {} of {} devices: a collective has at most {} ranks here\n",
                     q.devices.size(), devices, study::most_collective_ranks);
}

std::string with_protocol(const study::CollectiveWay& way) {
  return way.protocol.empty() ? std::string(name_of(way.algorithm))
                              : fmt::format("{} {}", name_of(way.algorithm), way.protocol);
}

std::string answers_table(const study::CollectiveQuestion& q,
                          const std::vector<study::CollectiveAnswer>& all) {
  std::vector<std::vector<std::string>> lines{{"size (B)", "count", "type", "time (us)",
                                               "algbw (GB/s)", "busbw (GB/s)", "algorithm",
                                               "protocol"}};
  for (const study::CollectiveAnswer& a : all)
    lines.push_back({fmt::format("{}", a.bytes), fmt::format("{}", a.elements),
                     std::string(name_of(q.dtype)), fmt::format("{:.1f}", a.chosen.seconds * 1e6),
                     gigabytes(a.algorithm_bandwidth), gigabytes(a.bus_bandwidth),
                     std::string(name_of(a.chosen.algorithm)), a.chosen.protocol});
  return table(lines);
}

/// Microseconds of every way, one column each.
std::string ways_table(const std::vector<study::CollectiveAnswer>& all) {
  std::vector<std::string> ways;
  for (const study::CollectiveAnswer& a : all)
    for (const study::CollectiveWay& way : a.ways)
      if (std::find(ways.begin(), ways.end(), with_protocol(way)) == ways.end())
        ways.push_back(with_protocol(way));
  std::vector<std::vector<std::string>> lines{{"size (B)"}};
  lines[0].insert(lines[0].end(), ways.begin(), ways.end());
  lines[0].emplace_back("chosen");
  for (const study::CollectiveAnswer& a : all) {
    std::map<std::string, std::string> us;
    for (const study::CollectiveWay& way : a.ways)
      us[with_protocol(way)] = fmt::format("{:.1f}", way.seconds * 1e6);
    std::vector<std::string>& line = lines.emplace_back();
    line.push_back(fmt::format("{}", a.bytes));
    for (const std::string& way : ways) line.push_back(us[way]);
    line.push_back(with_protocol(a.chosen));
  }
  return table(lines);
}

int run_collective(const Context& context, const CollectiveOptions& options) {
  const std::vector<std::int64_t> sizes = sizes_of(options);
  const std::string python = check_result_file(options.output);
  study::CollectiveQuestion q = question_of(context, options);
  std::vector<study::CollectiveAnswer> all;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const std::int64_t size : sizes) {
    q.bytes = size;
    all.push_back(predict_collective(q));
    results.push_back(to_json(all.back()));
  }
  const nlohmann::ordered_json json = with_header(context, {{"schema_version", 1},
                                                            {"collective", name_of(q.move)},
                                                            {"cluster", q.cluster.name()},
                                                            {"ranks", q.devices.size()},
                                                            {"devices", q.cluster.devices().size()},
                                                            {"dtype", name_of(q.dtype)},
                                                            {"software", q.software},
                                                            {"library", q.cluster.library().name},
                                                            {"sizes", std::move(results)}});
  write_result_file(options.output, text_of(json), python);
  if (context.json) {
    std::cout << text_of(json);
    return good;
  }
  std::cout << fmt::format("{} of {} ranks on {}, software {}, library {}\n{}\n", name_of(q.move),
                           q.devices.size(), q.cluster.name(), q.software, q.cluster.library().name,
                           left_out(q, options))
            << (options.ways ? ways_table(all) : answers_table(q, all));
  return good;
}

}  // namespace

void add_collective(CLI::App& app, Context& context) {
  const Command command(
      app, context, "collective", "Predict one collective by size, as nccl-tests measures it",
      "  rehearse collective all_reduce --cluster dgx1 --bytes 1MiB:1GiB\n"
      "  rehearse collective all_gather --cluster dgx-a100:4 --ranks 0-7,16-23 --ways\n"
      "  rehearse collective all_reduce --cluster dgx-h100:2 --protocol Simple -o curve.svg");
  auto options = std::make_shared<CollectiveOptions>();
  command.option("move", options->move, "Which collective")
      .one_of(names_of<program::Move>())
      .shows_default();
  command.option("--cluster", options->cluster, "Cluster, by name or file")
      .type("CLUSTER")
      .required();
  command.option("-b,--bytes", options->bytes, "Size of the tensor, or smallest:largest")
      .type("BYTES")
      .shows_default();
  command.option("--factor", options->factor, "Between two sizes")
      .type("X")
      .between(1.001, 1e6)
      .shows_default();
  command.option("--ranks", options->ranks, "Number of ranks, or devices as in 0-3,6")
      .type("RANKS");
  command.option("--software", options->software, "Whose communication library")
      .type("SOFTWARE")
      .shows_default();
  command.option("--algorithm", options->algorithm, "Only this algorithm")
      .one_of(names_of<program::Algorithm>())
      .shows_default();
  command.option("--protocol", options->protocol, "Only this protocol of the library").type("NAME");
  command.option("--dtype", options->dtype, "Type of the elements")
      .one_of({"f32", "f16", "bf16"})
      .shows_default();
  command.flag("--ways", options->ways, "Print every algorithm and protocol side by side");
  command.option("-o,--output", options->output, "Write JSON, or a picture (.svg, .png, .pdf)")
      .type("FILE");
  command.runs([&context, options] { return run_collective(context, *options); });
}

}  // namespace rehearse::cli
