// Converts text to quantities and back. One table per dimension lists its base units and the
// prefixes that they take; binary prefixes follow IEC 80000-13. A lower-case b is a bit: networks
// are sold in bits and memories in bytes, and cluster files often confuse the two.
#include "engine/base/units.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/numbers/numbers.h"

namespace rehearse {
namespace {

struct Base {
  std::string_view name;
  double value;
  std::string_view prefixes;  // SI prefixes that the unit takes, one letter each
  bool binary;                // whether an i after the prefix is allowed: Ki is 1024
};
struct Dimension {
  std::string_view what;
  std::string_view fitting;  // the units that the error message lists
  std::initializer_list<Base> bases;
};

constexpr std::string_view large = "kKMGTPE";

double decimal(char prefix) {
  switch (prefix) {
    case 'n':
      return 1e-9;
    case 'u':
      return 1e-6;
    case 'm':
      return 1e-3;
    case 'k':
    case 'K':
      return 1e3;
    case 'M':
      return 1e6;
    case 'G':
      return 1e9;
    case 'T':
      return 1e12;
    case 'P':
      return 1e15;
    default:
      return 1e18;  // E
  }
}

std::optional<double> scale_of(std::string_view unit, const Dimension& dimension) {
  for (const Base& base : dimension.bases) {
    if (!unit.ends_with(base.name)) continue;
    std::string_view prefix = unit.substr(0, unit.size() - base.name.size());
    if (prefix.empty()) return base.value;
    if (base.prefixes.find(prefix[0]) == std::string_view::npos) continue;
    if (prefix.size() == 1) return base.value * decimal(prefix[0]);
    if (prefix.size() == 2 && prefix[1] == 'i' && base.binary)
      return base.value * std::pow(1024, std::round(std::log10(decimal(prefix[0])) / 3));
  }
  return std::nullopt;
}

double parse(std::string_view text, const Dimension& dimension) {
  const auto fail = [&](const std::string& why) {
    return InputError(fmt::format("\"{}\" is not a {}: {}; units that fit: {}", text,
                                  dimension.what, why, dimension.fitting));
  };
  std::string_view rest = text;
  const auto trim = [](std::string_view s) {
    while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
    while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
    return s;
  };
  rest = trim(rest);
  double number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc{}) throw fail("it does not begin with a number");
  if (!std::isfinite(number)) throw fail("it is not finite");
  const std::string_view unit = trim(rest.substr(static_cast<std::size_t>(end - rest.data())));
  if (unit.empty() && number == 0) return 0;
  if (unit.empty()) throw fail("it has no unit");
  const std::optional<double> scale = scale_of(unit, dimension);
  if (!scale) throw fail(fmt::format("unit \"{}\" does not fit", unit));
  if (!std::isfinite(number * *scale)) throw fail("it is not finite");
  return number * *scale;
}

const Dimension duration{"duration",
                         "ns, us, ms, s, min, h, d",
                         {{"min", 60, "", false},
                          {"h", 3600, "", false},
                          {"d", 86400, "", false},
                          {"s", 1, "num", false},
                          {"µs", 1e-6, "", false}}};
const Dimension size{"size in bytes",
                     "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB (b would be bits)",
                     {{"B", 1, large, true}}};
const Dimension bandwidth{"bandwidth",
                          "bytes: B/s, MB/s, GB/s, GiB/s; bits: b/s, Mb/s, Gb/s, Tb/s",
                          {{"B/s", 1, large, true},
                           {"b/s", 0.125, large, true},
                           {"bit/s", 0.125, large, true},
                           {"Bps", 1, large, true},
                           {"bps", 0.125, large, true}}};
const Dimension flop_count{"number of floating-point operations",
                           "FLOP, MFLOP, GFLOP, TFLOP",
                           {{"FLOP", 1, large, false}, {"flop", 1, large, false}}};
const Dimension flop_rate{
    "floating-point rate",
    "FLOP/s, GFLOP/s, TFLOP/s, PFLOP/s",
    {{"FLOP/s", 1, large, false}, {"flop/s", 1, large, false}, {"FLOPS", 1, large, false}}};
const Dimension power{"power", "mW, W, kW, MW", {{"W", 1, "mkM", false}}};

/// Three significant digits, in the largest unit in which the rounded number is at least 1.
std::string three_digits(double value,
                         std::initializer_list<std::pair<double, const char*>> units) {
  const auto* chosen = units.begin();
  for (const auto* unit = units.begin(); unit != units.end(); ++unit)
    if (std::abs(value) >= 0.9995 * unit->first) chosen = unit;
  const double scaled = value / chosen->first;
  const double magnitude = std::abs(scaled);
  const int decimals = magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2;
  std::string number = fixed(scaled, decimals);
  if (magnitude != 0 && magnitude < 0.01) number = fmt::format("{:.3g}", scaled);
  if (number.find('.') != std::string::npos && number.find('e') == std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
  }
  return number + " " + chosen->second;
}

}  // namespace

Seconds parse_seconds(std::string_view text) { return Seconds(parse(text, duration)); }
Bytes parse_bytes(std::string_view text) { return Bytes(parse(text, size)); }
BytesPerSecond parse_bandwidth(std::string_view text) {
  return BytesPerSecond(parse(text, bandwidth));
}
Flops parse_flops(std::string_view text) { return Flops(parse(text, flop_count)); }
FlopsPerSecond parse_flop_rate(std::string_view text) {
  return FlopsPerSecond(parse(text, flop_rate));
}
Watts parse_watts(std::string_view text) { return Watts(parse(text, power)); }

std::string to_text(Seconds s) {
  return three_digits(
      s.value, {{1e-9, "ns"}, {1e-6, "us"}, {1e-3, "ms"}, {1, "s"}, {60, "min"}, {3600, "h"}});
}
std::string to_text(Bytes b) {
  return three_digits(
      b.value, {{1, "B"}, {1e3, "kB"}, {1e6, "MB"}, {1e9, "GB"}, {1e12, "TB"}, {1e15, "PB"}});
}
std::string to_text(BytesPerSecond b) {
  return three_digits(b.value,
                      {{1, "B/s"}, {1e3, "kB/s"}, {1e6, "MB/s"}, {1e9, "GB/s"}, {1e12, "TB/s"}});
}
std::string to_text(Joules j) {
  return three_digits(
      j.value, {{1e-3, "mJ"}, {1, "J"}, {1e3, "kJ"}, {1e6, "MJ"}, {1e9, "GJ"}, {1e12, "TJ"}});
}

}  // namespace rehearse
