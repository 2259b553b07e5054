#include "sim/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <simgrid/s4u.hpp>

#include "engine/base/errors.h"
#include "sim/network_inside.h"

namespace rehearse::sim {
namespace {

bool simulated_before = false;

sg::Engine& make_engine() {
  // Precision: SimGrid ends an activity that would end within `timing` of now, and treats a link as
  // full when less than `work-amount` of it is left. The errors of its defaults (1 ns, 1e-5) are
  // visible in chunks that take microseconds.
  std::vector<std::string> arguments = {"rehearse",
                                        "--cfg=network/model:CM02",
                                        "--cfg=network/crosstraffic:0",
                                        "--cfg=network/TCP-gamma:0",
                                        "--cfg=precision/timing:1e-12",
                                        "--cfg=precision/work-amount:1e-9",
                                        "--log=root.thresh:error",
                                        "--log=no_loc"};
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  // The engine is never destroyed: SimGrid ends with its process.
  return *new sg::Engine(&argc, argv.data());
}

}  // namespace

SharedNetwork::SharedNetwork(const cluster::Cluster& cluster, std::span<const double> slow,
                             Options options) {
  if (simulated_before)
    throw BackendError(
        "SimGrid can simulate once in a process: run each simulation in one of its own");
  simulated_before = true;
  impl_ = std::make_unique<Impl>(cluster, slow, options);
  impl_->engine = &make_engine();
  impl_->zone = impl_->engine->get_netzone_root()->add_netzone_star("cluster");
  impl_->source = impl_->zone->add_host("source", 1.0);
}
SharedNetwork::~SharedNetwork() = default;

Id SharedNetwork::route(Id from_device, Id to_device, double bytes) {
  if (from_device == to_device) return none;
  Impl& my = *impl_;
  Impl::Pair& pair = my.pairs[from_device][to_device];
  if (pair.ways.empty()) {
    pair.ways = my.cluster.ways(from_device, to_device);
    pair.routes.assign(pair.ways.size(), none);
  }
  const cluster::Path& way = fastest(pair.ways, bytes);
  Id& known = pair.routes[static_cast<std::size_t>(&way - pair.ways.data())];
  if (known == none) known = my.add_route(way, from_device, to_device);
  return known;
}
Id SharedNetwork::route(const std::vector<Id>& links, std::span<const Id> devices) {
  const auto [known, added] = impl_->trees.try_emplace(links, none);
  if (added) {
    known->second = impl_->add_route({.links = links}, devices[0], devices[1]);
    impl_->routes[known->second].devices.assign(devices.begin(), devices.end());
  }
  return known->second;
}
double SharedNetwork::latency(Id route) const { return impl_->routes[route].latency; }
double SharedNetwork::bandwidth(Id route) const { return impl_->routes[route].bandwidth; }
std::span<const Id> SharedNetwork::links(Id route) const { return impl_->routes[route].links; }

Id SharedNetwork::routes() const { return static_cast<Id>(impl_->routes.size()); }
SharedNetwork::Ends SharedNetwork::ends(Id route) const { return impl_->routes[route].ends; }

std::span<const Id> SharedNetwork::devices(Id route) const { return impl_->routes[route].devices; }

void SharedNetwork::slow_down(Id link, double factor) {
  Impl& my = *impl_;
  my.share_link(link);
  if (my.now_slow.empty()) my.now_slow.assign(my.cluster.links().size(), 1);
  my.now_slow[link] = factor;
  if (my.links.size() > link && my.links[link] != nullptr)
    my.links[link]->set_bandwidth(my.bandwidth(link) * units_per_byte);
  for (Impl::Route& route : my.routes)
    if (std::find(route.links.begin(), route.links.end(), link) != route.links.end())
      my.set_bandwidth(route);
}
void SharedNetwork::limit(Id route, double bandwidth) {
  Impl& my = *impl_;
  for (const Id link : my.routes[route].links) my.share_link(link);
  Impl::Route& mine = my.routes[route];
  mine.most = bandwidth;
  my.set_bandwidth(mine);
  double own = bandwidth;  // not less when a slow link is good again
  for (const Id link : mine.links) own = std::min(own, my.cluster.links()[link].bandwidth.value);
  mine.own->set_bandwidth(own * units_per_byte);
}
void SharedNetwork::hold(Id route) {
  Impl& my = *impl_;
  for (const Id link : my.routes[route].links) {
    const Id index = my.traffic[link].alone;
    if (index != none && my.alone[index].route == route) my.meet(index, now());
  }
  if (++my.routes[route].held == 1) my.set_moving(route, false);
}
void SharedNetwork::release(Id route) {
  if (--impl_->routes[route].held == 0) impl_->set_moving(route, true);
}
int SharedNetwork::flows_on(Id route) const { return impl_->routes[route].flows; }
void SharedNetwork::tell_of_held(std::function<void(Id)> stands) {
  impl_->stands = std::move(stands);
}

Id SharedNetwork::add_cores(int cores) {
  sg::Host* host = impl_->zone->add_host(fmt::format("c{}", impl_->cores.size()), 1.0);
  host->set_core_count(cores);
  impl_->cores.push_back(host);
  return static_cast<Id>(impl_->cores.size() - 1);
}

void SharedNetwork::transfer(double date, Id route, double bytes, Token token) {
  ++impl_->transfers;
  impl_->ask({.date = date,
              .amount = bytes,
              .token = token,
              .place = route,
              .kind = Impl::Kind::transfer});
}
void SharedNetwork::work(double date, Id cores, double seconds, int threads, Token token) {
  impl_->ask({.date = date,
              .amount = seconds,
              .token = token,
              .place = cores,
              .threads = threads,
              .kind = Impl::Kind::work});
}
void SharedNetwork::wake(double date, Token token) {
  impl_->ask({.date = date, .token = token, .kind = Impl::Kind::wake});
}

void SharedNetwork::run(std::function<void(Token)> done) {
  Impl& my = *impl_;
  my.done = std::move(done);
  my.zone->seal();
  sg::Comm::on_completion_cb([&my](const sg::Comm& comm) { my.end(comm); });
  sg::Exec::on_completion_cb([&my](const sg::Exec& exec) { my.end(exec); });
  sg::Engine::on_time_advance_cb([&my](double) { my.ended.clear(); });
  my.running = true;
  my.arm();
  my.engine->run();
  my.ended.clear();
}
double SharedNetwork::now() const { return sg::Engine::get_clock(); }
std::int64_t SharedNetwork::transfers() const { return impl_->transfers; }
std::int64_t SharedNetwork::flows() const { return impl_->flows; }

std::vector<SharedNetwork::Token> SharedNetwork::unfinished() const {
  std::vector<Token> tokens;
  for (const Impl::Slot& slot : impl_->slots)
    if (slot.activity) tokens.push_back(slot.token);
  return tokens;
}

}  // namespace rehearse::sim
