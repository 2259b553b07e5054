// What it costs to rent devices and nodes, as platform files and jobs state it.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "engine/base/files/config.h"
#include "engine/base/id.h"

namespace rehearse::cluster {

class Cluster;

struct Price {
  double per_hour = 0;
  std::string currency = {};  // "USD"; empty: the price is not known
  std::string source = {};    // who asks it, and when
  bool known() const { return !currency.empty(); }
};

/// Reads "3.99 USD/h" or "3.99 USD/h (Lambda, one of 8)". Throws InputError.
Price parse_price(const std::string& text);
/// "3.99 USD/h (Lambda, one of 8)".
std::string to_text(const Price& price);
/// The key `price` of a device or a node; not known without it.
Price read_price(const Config& c);

/// Puts the prices of a job, the list of texts `prices` of its section [cluster], in place of those
/// that the platform states. Kinds without a price there keep the platform's. A text is what every
/// device costs, as in "2.49 USD/h", or what those of one kind cost, as in "RTX 4090: 0.35 USD/h".
/// Throws InputError.
void set_prices(Cluster& cluster, const Config& c);

/// What a job's devices cost together.
struct Rent {
  double per_hour = 0;
  std::string currency = {};               // empty: the rent is not known
  std::vector<std::string> prices = {};    // "H100: 3.99 USD/h (Lambda, one of 8)", each once
  std::vector<std::string> unpriced = {};  // kinds of device without a price
  bool known() const { return !currency.empty(); }
};
/// A node that has a price of its own is rented whole; of the other nodes, those of `devices`
/// alone. Throws InputError when prices have several currencies.
Rent rent_of(const Cluster& cluster, std::span<const Id> devices);

}  // namespace rehearse::cluster
