// A whole round of a secure sum in one process, with all messages that the server got.
#pragma once
#include <map>
#include <vector>

#include "engine/base/numbers/random.h"
#include "engine/secure/client.h"
#include "engine/secure/server.h"

namespace rehearse::test {

struct PlayedRound {
  std::vector<std::uint32_t> sum = {};
  std::vector<Id> counted = {};
  std::vector<secure::ClientTraffic> traffic = {};      // bytes that were really passed
  std::vector<std::map<Id, secure::Message>> got = {};  // [round]: by client
  std::map<Id, secure::Message> means = {};             // the last answers
};

inline std::vector<float> some_values(std::int64_t elements, Id client) {
  const RandomKey key = random_key(1, Draw::test, client, 0);
  std::vector<float> out;
  for (std::int64_t i = 0; i < elements; ++i)
    out.push_back(static_cast<float>(2 * random_uniform(key, static_cast<std::uint32_t>(i)) - 1));
  return out;
}

inline PlayedRound play(const secure::Group& group, const secure::Leaving& leaving,
                        const std::vector<double>& weights,
                        const std::vector<std::vector<std::uint32_t>>& levels) {
  secure::Server server(group, weights);
  std::vector<secure::Client> clients;
  for (Id id = 0; id < leaving.size(); ++id) clients.emplace_back(group, id);
  PlayedRound out;
  out.traffic.resize(leaving.size());
  std::map<Id, secure::Message> answers;
  for (int round = 0; round < secure::rounds; ++round) {
    auto& got = out.got.emplace_back();
    for (const Id id : secure::senders(leaving, round)) {
      secure::Client& client = clients[id];
      got[id] = round == 0   ? client.advertise()
                : round == 1 ? client.share(answers.at(id))
                : round == 2 ? client.mask(answers.at(id), levels[id])
                             : client.unmask(answers.at(id));
      server.take(id, got[id]);
    }
    answers = server.close();
    for (const auto& [id, message] : got)
      out.traffic[id].up[static_cast<std::size_t>(round)] =
          static_cast<std::int64_t>(message.size());
    for (const auto& [id, message] : answers)
      out.traffic[id].down[static_cast<std::size_t>(round)] =
          static_cast<std::int64_t>(message.size());
  }
  out.sum = server.sum(), out.counted = server.counted(), out.means = answers;
  return out;
}

}  // namespace rehearse::test
