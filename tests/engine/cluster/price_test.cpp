// Prices: what their text says, jobs that replace them, and what a job's devices cost together.
#include "engine/cluster/price.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "engine/cluster/cluster.h"
#include "tests/message_of.h"

namespace rehearse::cluster {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

/// What a job states: the key `prices` with this list.
void set_prices(Cluster& cluster, const std::string& list) {
  cluster::set_prices(cluster, Config::parse("prices = " + list, "job.toml"));
}

/// Two nodes with a price of their own, and one whose devices have prices.
Cluster three_nodes() {
  const std::string path = testing::TempDir() + "/priced.toml";
  std::ofstream(path) << R"toml(summary = "x"
[[device]]
name = "fast"
memory = "8GB"
f32 = "1TFLOP/s"
memory_bandwidth = "100GB/s"
price = "2.5 USD/h (a shop)"
source = "test"
[[device]]
name = "old"
memory = "8GB"
f32 = "1TFLOP/s"
memory_bandwidth = "100GB/s"
source = "test"
[[nodes]]
count = 2
devices = ["fast", "fast"]
price = "4 USD/h"
links = [{ from = "gpu*", to = "fabric", bandwidth = "1GB/s", latency = "1us" }]
[[nodes]]
devices = ["fast", "fast", "old"]
links = [{ from = "gpu*", to = "fabric", bandwidth = "1GB/s", latency = "1us" }]
)toml";
  return load_cluster(path);
}

TEST(Prices, AreReadAndWritten) {
  const Price plain = parse_price(" 3.99USD/h "), noted = parse_price("0.5 EUR/h (a shop, 2026)");
  EXPECT_DOUBLE_EQ(plain.per_hour, 3.99);
  EXPECT_EQ(plain.currency, "USD");
  EXPECT_EQ(to_text(plain), "3.99 USD/h");
  EXPECT_EQ(to_text(noted), "0.5 EUR/h (a shop, 2026)");
  EXPECT_TRUE(parse_price("0 USD/h").known()) << "what one owns may cost nothing";
  EXPECT_FALSE(Price().known());
}

TEST(Prices, WrongOnesAreRefused) {
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"", "does not begin with a number"},
           {"cheap", "does not begin with a number"},
           {"-1 USD/h", "must be from 0 to 1e+09"},
           {"inf USD/h", "must be from 0 to 1e+09"},
           {"3.99", "no currency and hour"},
           {"3.99 USD", "no currency and hour"},
           {"3.99 usd/h", "no currency and hour"},
           {"3.99 /h", "no currency and hour"},
           {"3.99 USD/d", "no currency and hour"},
           {"3.99 USD/h (a shop", "its note has no end"}})
    EXPECT_THAT(message_of<InputError>([&, &text = text] { parse_price(text); }), HasSubstr(why))
        << text;
}

TEST(Prices, ANodeWithAPriceIsRentedWhole) {
  const Cluster c = three_nodes();
  const Rent one = rent_of(c, std::vector<Id>{0}), both = rent_of(c, std::vector<Id>{0, 1}),
             mixed = rent_of(c, std::vector<Id>{1, 2, 4, 5});
  EXPECT_DOUBLE_EQ(one.per_hour, 4);
  EXPECT_DOUBLE_EQ(both.per_hour, 4);
  EXPECT_DOUBLE_EQ(mixed.per_hour, 4 + 4 + 2.5 + 2.5);
  EXPECT_EQ(mixed.currency, "USD");
  EXPECT_THAT(mixed.prices, ElementsAre("node with fast: 4 USD/h", "fast: 2.5 USD/h (a shop)"));
}

TEST(Prices, OneDeviceWithoutAPriceLeavesTheRentUnknown) {
  const Rent rent = rent_of(three_nodes(), std::vector<Id>{4, 5, 6});
  EXPECT_FALSE(rent.known());
  EXPECT_THAT(rent.unpriced, ElementsAre("old"));
  EXPECT_THAT(rent.prices, ElementsAre("fast: 2.5 USD/h (a shop)"));
}

TEST(Prices, AJobReplacesThePlatforms) {
  Cluster c = three_nodes();
  const std::uint64_t before = c.hash();
  set_prices(c, R"x(["old: 0.25 USD/h", "1 USD/h (mine: ours)"])x");
  EXPECT_DOUBLE_EQ(rent_of(c, std::vector<Id>{0, 4, 6}).per_hour, 1 + 1 + 0.25);
  EXPECT_EQ(c.kinds()[0].price.source, "mine: ours");
  Cluster other = three_nodes();
  set_prices(other, R"(["old: 0.75 USD/h"])");
  EXPECT_DOUBLE_EQ(rent_of(other, std::vector<Id>{6}).per_hour, 0.75);
  for (const Id id : {Id{0}, Id{4}})
    EXPECT_EQ(rent_of(other, std::vector<Id>{id}).prices,
              rent_of(three_nodes(), std::vector<Id>{id}).prices)
        << "a kind that is not named keeps its price";
  cluster::set_prices(c, Config::parse("", "job.toml"));
  EXPECT_DOUBLE_EQ(rent_of(c, std::vector<Id>{6}).per_hour, 0.25) << "without the key";
  EXPECT_EQ(c.hash(), before) << "prices change no step time";
  EXPECT_THAT(message_of<InputError>([&] { set_prices(c, R"(["older: 1 USD/h"])"); }),
              HasSubstr("has no device \"older\"; its devices: fast, old"));
  // Of a kind that only other clusters have.
  set_prices(c, R"(["old: 0.5 USD/h", "H100: 3 USD/h"])");
  EXPECT_DOUBLE_EQ(rent_of(c, std::vector<Id>{6}).per_hour, 0.5);
  EXPECT_THAT(message_of<InputError>([&] { set_prices(c, R"(["H100: three"])"); }),
              HasSubstr("is not a price"));
  set_prices(c, R"(["fast: 1 USD/h", "old: 1 EUR/h"])");
  EXPECT_THAT(message_of<InputError>([&] {
                rent_of(c, std::vector<Id>{0, 6});
              }),
              HasSubstr("cluster.prices: USD and EUR cannot be added"));
}

TEST(Prices, OfTheDeviceTableNameTheirSource) {
  for (const std::string& name : known_devices())
    if (const Price price = load_device(name).price; price.known()) {
      EXPECT_FALSE(price.source.empty()) << name;
      EXPECT_GT(price.per_hour, 0) << name;
    }
}

}  // namespace
}  // namespace rehearse::cluster
