// Tests that SimGrid 4 is found, links and simulates: one computation and one transfer take the
// time that follows from their sizes. The simulation runs in a child process, because a process can
// create a SimGrid engine only once.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <simgrid/s4u.hpp>

namespace {

namespace sg = simgrid::s4u;

/// Simulated seconds of 2e9 FLOP on a host of 1e9 FLOP/s and then 1e8 bytes over a link of 1e8
/// bytes/s without latency: 3 s.
double simulate() {
  int argc = 3;
  char name[] = "simgrid_test";
  char crosstraffic[] = "--cfg=network/crosstraffic:0";
  char model[] = "--cfg=network/model:CM02";
  char* argv[] = {name, crosstraffic, model, nullptr};
  sg::Engine engine(&argc, argv);
  auto* zone = engine.get_netzone_root()->add_netzone_full("cluster");
  auto* left = zone->add_host("left", 1e9);
  auto* right = zone->add_host("right", 1e9);
  const auto* link = zone->add_link("wire", 1e8);
  zone->add_route(left, right, {link});
  zone->seal();
  left->add_actor("work", [left, right] {
    sg::this_actor::execute(2e9);
    sg::Comm::sendto(left, right, 100'000'000);
  });
  engine.run();
  return sg::Engine::get_clock();
}

TEST(SimGrid, TakesTheTimeTheSizesSay) {
  EXPECT_EXIT(std::exit(std::abs(simulate() - 3.0) < 1e-9 ? 0 : 1), testing::ExitedWithCode(0), "");
}

}  // namespace
