// Compares our socket transport with Gloo between processes of this machine: all-reduce and
// reduce-scatter of 100 MB, all-reduce of 64 bytes, and a message there and back. The two take
// turns in each round. These figures decided the default of run.transport.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

#include "bench/figure.h"
#include "runtime/communication/network.h"
#include "runtime/control/launch/launcher.h"
#include "runtime/control/net/socket.h"

namespace {

using namespace rehearse;

constexpr int rounds = 9;

struct Contest {
  const char* what = "";
  const char* unit = "";
  double scale = 1;  // from seconds to `unit`
  std::function<void(runtime::Communicator&)> run = {};
};

void print(const char* what, const char* unit, int ranks, std::vector<double> ours,
           std::vector<double> gloos) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(gloos[i] / ours[i]);
  for (auto* v : {&ours, &gloos, &ratios}) std::ranges::sort(*v);
  const std::size_t middle = ours.size() / 2;
  fmt::print(
      "  {:<28} sockets {:8.1f} {} (least {:.1f}), gloo {:8.1f} {} (least {:.1f}), "
      "gloo/sockets {:.2f} [{:.2f}, {:.2f}]\n",
      what, ours[middle], unit, ours[0], gloos[middle], unit, gloos[0], ratios[middle],
      ratios.front(), ratios.back());
  // Where Gloo has no algorithm, both transports run ours, so Gloo is not a peer.
  const bool peer = !std::string_view(what).ends_with("(ours)");
  bench::record({.name = fmt::format("{}, {} processes", what, ranks),
                 .measured = ours[middle],
                 .unit = unit,
                 .against = peer ? "Gloo" : "",
                 .reference = gloos[middle]});
}

void be_rank(const runtime::Environment& environment) {
  runtime::Control control(environment, {});
  {
    runtime::NetworkOptions options;
    runtime::Network sockets(control, options);
    options.transport = job::Transport::gloo;
    runtime::Network gloo(control, options);
    std::vector<Id> ranks(static_cast<std::size_t>(environment.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto ours = sockets.communicator("bench sockets", ranks);
    const auto theirs = gloo.communicator("bench gloo", ranks);
    std::vector<float> x(25'000'000, 1.0F);
    const auto large = static_cast<std::int64_t>(x.size());
    const auto scatter = [&](runtime::Communicator& c) {
      const int handle =
          c.prepare({.move = program::Move::reduce_scatter, .elements = large, .consume = true});
      c.run(handle, x.data(), x.data() + c.member() * large / c.size());
    };
    const auto there_and_back = [&](runtime::Communicator& c) {
      for (int i = 0; i < 200 && c.member() < 2; ++i) {
        if (c.member() == 0) c.send({x.data(), 16}, 1);
        c.recv({x.data(), 16}, 1 - c.member());
        if (c.member() == 1) c.send({x.data(), 16}, 0);
      }
    };
    const std::vector<Contest> contests = {
        {"all-reduce, 100 MB", "ms", 1e3,
         [&](runtime::Communicator& c) {
           c.all_reduce({x.data(), large});
         }},
        {"reduce-scatter, 100 MB (ours)", "ms", 1e3, scatter},
        {"all-reduce, 64 bytes", "us", 1e6 / 200,
         [&](runtime::Communicator& c) {
           for (int i = 0; i < 200; ++i) c.all_reduce({x.data(), 16});
         }},
        {"64 bytes there and back (ours)", "us", 1e6 / 200, there_and_back},
    };
    for (const Contest& contest : contests) {
      std::vector<double> times[2];
      for (int round = -1; round < rounds; ++round) {
        for (int which = 0; which < 2; ++which) {
          std::ranges::fill(x, 0.0F);
          ours->barrier();
          const auto start = runtime::Clock::now();
          contest.run(which == 0 ? *ours : *theirs);
          if (round >= 0) times[which].push_back(runtime::seconds_since(start) * contest.scale);
        }
      }
      if (environment.rank == 0)
        print(contest.what, contest.unit, environment.world_size, times[0], times[1]);
    }
  }
  control.finish();
}

}  // namespace

int main() {
  using namespace rehearse;
  try {
    for (const int n : {2, 4}) {
      fmt::print("communication between {} processes\n", n);
      std::fflush(stdout);
      const auto rank = [] {
        be_rank(runtime::detect_environment());
        return 0;
      };
      if (const int status = runtime::launch(rank, {n, Seconds(5)}).status; status != 0)
        return status;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "rehearse: {}\n", error.what());
    return 1;
  }
}
