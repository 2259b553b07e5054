// A server that tries to learn one client's weights from what clients send it, and a server that
// lies in order to get more.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/engine/secure/secure_round.h"
#include "tests/message_of.h"

namespace rehearse::secure {
namespace {

constexpr std::int64_t elements = 4096;
constexpr int clients = 5;

std::vector<std::uint32_t> levels_in(const Message& message) {
  std::vector<std::uint32_t> out(message.size() / sizeof(std::uint32_t));
  std::memcpy(out.data(), message.data(), message.size());
  return out;
}

/// Pearson's statistic of the bytes against equally likely ones: about 255, with a standard
/// deviation of 23.
double chi_squared(const std::vector<std::uint32_t>& values) {
  std::array<int, 256> seen = {};
  for (std::uint32_t value : values)
    for (int i = 0; i < 4; ++i, value >>= 8) ++seen[value & 255U];
  const double expected = 4.0 * static_cast<double>(values.size()) / 256;
  double out = 0;
  for (const int count : seen) out += (count - expected) * (count - expected) / expected;
  return out;
}
constexpr double random_looking = 255 + 6 * 23;

struct Levels {
  Group group = group_of({.clients = clients, .elements = elements});
  std::vector<double> weights = std::vector<double>(clients, 1.0);
  std::vector<std::vector<std::uint32_t>> levels = {};
  Levels() {
    for (Id id = 0; id < clients; ++id)
      levels.push_back(levels_of(test::some_values(elements, id), 1, group.settings.ring));
  }
};

/// A round whose clients have shared their secrets and send no weights yet.
struct BeforeMasks {
  Server server;
  std::vector<Client> all = {};
  std::map<Id, Message> answers = {};  // of the server to what came last
};
BeforeMasks before_masks(const Levels& in) {
  BeforeMasks at{.server = Server(in.group, in.weights)};
  for (Id id = 0; id < clients; ++id) at.all.emplace_back(in.group, id);
  for (Id id = 0; id < clients; ++id) at.server.take(id, at.all[id].advertise());
  at.answers = at.server.close();
  for (Id id = 0; id < clients; ++id) at.server.take(id, at.all[id].share(at.answers.at(id)));
  at.answers = at.server.close();
  return at;
}

/// A number from the shares of it that are in the clients' last messages. `owner`'s own share is
/// the first of its message; a neighbour's is at the place of the owner among its neighbours.
Key opened_from(const test::PlayedRound& played, const Group& group, Id owner, int count) {
  std::vector<std::pair<Id, Key>> shares;
  for (const auto& [holder, message] : played.got[3]) {
    if (static_cast<int>(shares.size()) == count) break;
    const std::vector<Id>& near = group.neighbours[holder];
    const std::size_t place =
        holder == owner
            ? 0
            : 1 + static_cast<std::size_t>(std::ranges::find(near, owner) - near.begin());
    Key share = {};
    std::memcpy(share.data(), message.data() + place * sizeof share, sizeof share);
    shares.emplace_back(holder, share);
  }
  return join(shares);
}

// The levels in the clear do not look random; what the server gets does, even after it has taken
// out the self mask, which it may open.
TEST(SecureAttack, NothingOfOneClientIsLeft) {
  const Levels in;
  const test::PlayedRound played =
      test::play(in.group, Leaving(clients, rounds), in.weights, in.levels);
  for (Id id = 0; id < clients; ++id) {
    EXPECT_GT(chi_squared(in.levels[id]), 10 * random_looking);
    std::vector<std::uint32_t> got = levels_in(played.got[2].at(id));
    EXPECT_LT(chi_squared(got), random_looking);
    add_mask(got, opened_from(played, in.group, id, in.group.settings.threshold), true);
    EXPECT_NE(got, in.levels[id]);
    EXPECT_LT(chi_squared(got), random_looking);
  }
}

// Any group of clients smaller than all: the server may take out all self masks and add.
TEST(SecureAttack, OnlyTheWholeSumOpens) {
  const Levels in;
  const test::PlayedRound played =
      test::play(in.group, Leaving(clients, rounds), in.weights, in.levels);
  for (unsigned chosen = 1; chosen < 1U << clients; ++chosen) {
    std::vector<std::uint32_t> sum(elements), clear(elements);
    for (Id id = 0; id < clients; ++id) {
      if ((chosen >> id & 1U) == 0) continue;
      std::vector<std::uint32_t> got = levels_in(played.got[2].at(id));
      add_mask(got, opened_from(played, in.group, id, in.group.settings.threshold), true);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += got[i];
        clear[i] += in.levels[id][i];
      }
    }
    if (chosen == (1U << clients) - 1) {
      EXPECT_EQ(sum, clear);
    } else {
      EXPECT_LT(chi_squared(sum), random_looking) << chosen;
    }
  }
}

TEST(SecureAttack, TooFewSharesOpenAnotherNumber) {
  const Key number = random_secret_number();
  const std::vector<Id> holders{0, 1, 4, 6, 9};
  const std::vector<Key> shares = split(number, holders, 3);
  std::vector<std::pair<Id, Key>> some;
  for (std::size_t i = 0; i < holders.size(); ++i) {
    some.emplace_back(holders[i], shares[i]);
    EXPECT_EQ(join(some) == number, some.size() >= 3);
  }
  EXPECT_EQ(join(std::span(some).subspan(2)), number);
}

// The server says to some clients that client 0 stayed and to others that it left, so as to open
// both of its secrets. Clients of whom it says that too many left refuse; and with as many shares
// of one kind as it needs, too few of the other kind remain.
TEST(SecureAttack, BothSecretsOfAClientNeverOpen) {
  const Levels in;
  const int threshold = in.group.settings.threshold;
  for (int lies = 0; lies < clients; ++lies) {
    auto [server, all, answers] = before_masks(in);
    std::vector<std::uint32_t> masked;
    for (Id id = 0; id < clients; ++id) {
      const Message message = all[id].mask(answers.at(id), in.levels[id]);
      if (id == 0) masked = levels_in(message);
      server.take(id, message);
    }
    answers = server.close();
    std::vector<std::pair<Id, Key>> of_pair, of_self;
    for (Id id = 0; id < clients; ++id) {
      const bool lie = id >= 1 && static_cast<int>(id) <= lies;
      if (lie) answers.at(id)[0] = 0;  // client 0 is the first neighbour of all others
      const Message message = all[id].unmask(answers.at(id));
      Key share = {};
      std::memcpy(share.data(), message.data() + (id == 0 ? 0 : sizeof share), sizeof share);
      (lie ? of_pair : of_self).emplace_back(id, share);
    }
    EXPECT_FALSE(static_cast<int>(of_pair.size()) >= threshold &&
                 static_cast<int>(of_self.size()) >= threshold);
    // Its best guess, from what it has of both.
    if (of_pair.empty()) continue;
    add_mask(masked, join(of_self), true);
    EXPECT_LT(chi_squared(masked), random_looking);
  }
}

TEST(SecureAttack, ClientsAnswerOnce) {
  const Levels in;
  auto [server, all, answers] = before_masks(in);
  const auto said = [](auto call) { return test::message_of<BackendError>(call); };
  // Sealed shares are for one client and of one client.
  Message swapped = answers.at(1);
  swapped[0] = 2;
  Client copy = all[1];
  EXPECT_NE(said([&] { copy.mask(swapped, in.levels[1]); }).find("cannot open"), std::string::npos);
  for (Id id = 0; id < clients; ++id) server.take(id, all[id].mask(answers.at(id), in.levels[id]));
  EXPECT_NE(said([&] { all[1].mask(answers.at(1), in.levels[1]); }).find("out of turn"),
            std::string::npos);
  answers = server.close();
  EXPECT_NE(said([&] { Client(all[1]).unmask(Message(4, 0)); }).find("too few"), std::string::npos);
  all[1].unmask(answers.at(1));
  EXPECT_NE(said([&] { all[1].unmask(answers.at(1)); }).find("out of turn"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::secure
