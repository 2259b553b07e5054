#include "engine/cluster/price.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>

#include "engine/base/errors.h"
#include "engine/cluster/cluster.h"
#include "engine/cluster/platform/device_table.h"

namespace rehearse::cluster {
namespace {

constexpr double most = 1e9;  // an hour

std::string without(std::string text, const std::string& blanks) {
  text.erase(0, std::min(text.size(), text.find_first_not_of(blanks)));
  text.erase(text.find_last_not_of(blanks) + 1);
  return text;
}

bool is_currency(const std::string& text) {
  return text.size() == 3 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

/// The kind of device that stands before a colon, empty without one, and the rest.
std::pair<std::string, std::string> kind_and_price(const std::string& text) {
  const std::size_t note = text.find('('), colon = text.rfind(':', note);
  if (colon == std::string::npos) return {"", text};
  return {without(text.substr(0, colon), " "), text.substr(colon + 1)};
}

void set_price(std::vector<DeviceKind>& kinds, const std::string& cluster,
               const std::string& text) {
  const auto [name, price] = kind_and_price(text);
  const auto is = [&name](const DeviceKind& kind) { return kind.name == name; };
  if (!name.empty() && std::none_of(kinds.begin(), kinds.end(), is)) {
    if (find_kind(device_table(), name) != nullptr) {
      parse_price(price);  // of a list of prices that other clusters use, too
      return;
    }
    std::vector<std::string> names;
    for (const DeviceKind& kind : kinds) names.push_back(kind.name);
    throw InputError(fmt::format("\"{}\": {} has no device \"{}\"; its devices: {}", text, cluster,
                                 name, fmt::join(names, ", ")));
  }
  for (DeviceKind& kind : kinds)
    if (name.empty() ? !kind.price.known() : is(kind)) kind.price = parse_price(price);
}

}  // namespace

Price parse_price(const std::string& text) {
  const auto fail = [&](const std::string& why) {
    return InputError(
        fmt::format("\"{}\" is not a price: {}; as in \"3.99 USD/h\" or \"3.99 USD/h (who asks "
                    "it, and when)\"",
                    text, why));
  };
  std::string rest = without(text, " ");
  Price price;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), price.per_hour);
  if (error != std::errc{}) throw fail("it does not begin with a number");
  if (!std::isfinite(price.per_hour) || price.per_hour < 0 || price.per_hour > most)
    throw fail(fmt::format("the number must be from 0 to {:g}", most));
  rest = without(rest.substr(static_cast<std::size_t>(end - rest.data())), " ");
  if (const std::size_t note = rest.find('('); note != std::string::npos) {
    if (rest.back() != ')') throw fail("its note has no end");
    price.source = rest.substr(note + 1, rest.size() - note - 2);
    rest = without(rest.substr(0, note), " ");
  }
  if (!rest.ends_with("/h") || !is_currency(rest.substr(0, rest.size() - 2)))
    throw fail("it has no currency and hour");
  price.currency = rest.substr(0, 3);
  return price;
}

std::string to_text(const Price& price) {
  return fmt::format("{:.10g} {}/h{}", price.per_hour, price.currency,
                     price.source.empty() ? "" : " (" + price.source + ")");
}

Price read_price(const Config& c) {
  const std::string text = c.text("price", "");
  if (text.empty()) return {};
  try {
    return parse_price(text);
  } catch (const InputError& error) {
    throw c.error("price", error.what());
  }
}

void set_prices(Cluster& cluster, const Config& c) {
  const std::vector<std::string> texts = c.texts("prices");
  if (texts.empty()) return;
  std::vector<DeviceKind> kinds(cluster.kinds().begin(), cluster.kinds().end());
  for (DeviceKind& kind : kinds) kind.price = {};
  std::vector<bool> stated;  // by kind
  try {
    for (const std::string& text : texts) set_price(kinds, cluster.name(), text);
  } catch (const InputError& error) {
    throw c.error("prices", error.what());
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    stated.push_back(kinds[i].price.known());
    if (stated[i]) cluster.replace_kind(static_cast<Id>(i), std::move(kinds[i]));
  }
  for (const Device& device : cluster.devices()) {
    if (!stated[device.kind]) continue;
    Host host = cluster.host_of(device.node);
    host.price = {};
    cluster.set_host(device.node, host);
  }
}

Rent rent_of(const Cluster& cluster, std::span<const Id> devices) {
  Rent rent;
  const auto add = [&](const std::string& what, const Price& price, std::int64_t count) {
    const std::string text = what + ": " + to_text(price);
    if (rent.known() && rent.currency != price.currency)
      throw InputError(
          fmt::format("cluster.prices: {} and {} cannot be added: {}, {}; state all "
                      "prices in one currency",
                      rent.currency, price.currency, fmt::join(rent.prices, ", "), text));
    rent.currency = price.currency, rent.per_hour += static_cast<double>(count) * price.per_hour;
    if (std::find(rent.prices.begin(), rent.prices.end(), text) == rent.prices.end())
      rent.prices.push_back(text);
  };
  std::set<Id> whole;
  std::vector<std::int64_t> alone(cluster.kinds().size());  // by kind
  for (const Id id : devices) {
    const Device& device = cluster.devices()[id];
    const Price& all = cluster.host_of(device.node).price;
    if (!all.known())
      ++alone[device.kind];
    else if (whole.insert(device.node).second)
      add("node with " + cluster.kind_of(id).name, all, 1);
  }
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const DeviceKind& kind = cluster.kinds()[i];
    if (alone[i] > 0 && kind.price.known()) add(kind.name, kind.price, alone[i]);
    if (alone[i] > 0 && !kind.price.known()) rent.unpriced.push_back(kind.name);
  }
  if (!rent.unpriced.empty()) rent.per_hour = 0, rent.currency.clear();
  return rent;
}

}  // namespace rehearse::cluster
