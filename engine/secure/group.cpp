#include "engine/secure/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/numbers/random.h"
#include "engine/base/refusal.h"
#include "engine/secure/keys.h"

namespace rehearse::secure {
namespace {

/// Clients in an order that nobody chose.
std::vector<Id> shuffled(int clients, std::uint64_t seed) {
  std::vector<Id> out(static_cast<std::size_t>(clients));
  std::iota(out.begin(), out.end(), Id{0});
  const RandomKey key = random_key(seed, Draw::graph, 0, 0);
  for (std::size_t i = out.size(); i-- > 1;)
    std::swap(out[i], out[random_bits(key, static_cast<std::uint32_t>(i)) % (i + 1)]);
  return out;
}

/// How many of a client's neighbours send in a round.
std::int64_t near(const Group& group, const Leaving& leaving, Id client, int round) {
  return std::ranges::count_if(group.neighbours[client],
                               [&](Id other) { return leaving[other] > round; });
}

}  // namespace

Group group_of(Settings s) {
  const auto must = [](bool good, const char* key, auto value, const std::string& why) {
    if (!good) refuse(key, fmt::format("{}", value), why);
  };
  constexpr int fewest = 3;
  must(s.clients >= fewest, "dp", s.clients,
       "of the sum of fewer than 3 clients, each learns the other's weights; nearest: 3");
  const int others = s.clients - 1;
  if (s.neighbours == 0) s.neighbours = others;
  must(s.neighbours >= 2 && s.neighbours <= others, "neighbours", s.neighbours,
       fmt::format("must be from 2 to {}", others));
  must(s.neighbours == others || s.neighbours % 2 == 0, "neighbours", s.neighbours,
       fmt::format("a ring has equally many on both sides; nearest: {}", s.neighbours - 1));
  const int shares = s.neighbours + 1;
  if (s.threshold == 0) s.threshold = 2 * shares / 3 + 1;
  // A server that tells some clients that another one stayed and others that it left must not get
  // enough shares of both of its secrets.
  must(s.threshold <= shares && 2 * s.threshold > shares, "threshold", s.threshold,
       fmt::format("must be from {} to {}: more than half of the {} shares of a secret",
                   shares / 2 + 1, shares, shares));
  must(s.ring.clip > 0 && s.ring.clip <= 1e30, "clipping_range", s.ring.clip,
       "must be above 0, and at most 1e30");
  const std::uint32_t most = most_levels(s.clients);
  must(s.ring.levels >= 2 && s.ring.levels <= most, "levels", s.ring.levels,
       fmt::format("must be from 2 to {}, so that the sum of {} clients fits into 32 bits", most,
                   s.clients));
  Group out{.settings = s, .neighbours = {}};
  out.neighbours.resize(static_cast<std::size_t>(s.clients));
  const std::vector<Id> circle = shuffled(s.clients, s.seed);
  for (std::size_t at = 0; at < circle.size(); ++at) {
    std::vector<Id>& near = out.neighbours[circle[at]];
    const auto before = static_cast<std::size_t>(s.neighbours / 2);
    const auto n = circle.size();
    for (std::size_t i = 0; i < static_cast<std::size_t>(s.neighbours); ++i)
      near.push_back(circle[(at + n - before + i + (i >= before ? 1 : 0)) % n]);
    std::ranges::sort(near);
  }
  return out;
}

std::vector<Id> senders(const Leaving& leaving, int round) {
  std::vector<Id> out;
  for (Id client = 0; client < leaving.size(); ++client)
    if (leaving[client] > round) out.push_back(client);
  return out;
}

void check_leaving(const Group& group, const Leaving& leaving) {
  constexpr int share = static_cast<int>(Round::share), unmask = static_cast<int>(Round::unmask);
  for (const Id client : senders(leaving, share)) {
    const std::int64_t holders =
        near(group, leaving, client, unmask) + (leaving[client] > unmask ? 1 : 0);
    if (holders < group.settings.threshold)
      throw InputError(fmt::format(
          "--drop: of client {}'s secrets {} shares remain, and {} are needed: let fewer clients "
          "leave, or use a smaller --threshold",
          client, holders, group.settings.threshold));
  }
  if (senders(leaving, static_cast<int>(Round::mask)).empty() || senders(leaving, unmask).empty())
    throw InputError("--drop: no client remains");
}

std::vector<ClientTraffic> traffic_of(const Group& group, const Leaving& leaving) {
  const std::int64_t levels = group.settings.elements * 4;
  constexpr std::int64_t sealed = id_bytes + static_cast<std::int64_t>(sealed_bytes);
  std::vector<ClientTraffic> out;
  for (Id client = 0; client < leaving.size(); ++client) {
    const std::int64_t advertised = near(group, leaving, client, 0);
    const std::int64_t shared = near(group, leaving, client, 1);
    ClientTraffic all{
        .up = {2 * key_bytes, sealed * advertised, levels, key_bytes * (shared + 1)},
        .down = {(id_bytes + 2 * key_bytes) * advertised, sealed * shared, shared, levels}};
    for (int round = leaving[client]; round < rounds; ++round)
      all.up[static_cast<std::size_t>(round)] = all.down[static_cast<std::size_t>(round)] = 0;
    out.push_back(all);
  }
  return out;
}

}  // namespace rehearse::secure
