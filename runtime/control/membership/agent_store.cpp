#include "runtime/control/membership/agent_store.h"

#include <fmt/format.h>

#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

std::string key_of(const Environment& environment) {
  return "rehearse/control/" + environment.run_id;
}

template <class Use>
auto with_store(const Environment& environment, Seconds timeout, Use use) {
  try {
    c10d::TCPStoreOptions options;
    options.port = environment.master_port;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(static_cast<long>(timeout.value * 1e3));
    c10d::TCPStore store(environment.master_address, options);
    return use(store);
  } catch (const BackendError&) {
    throw;
  } catch (const std::exception& error) {
    throw BackendError(fmt::format("torchrun's store at {}:{} does not answer: {}",
                                   environment.master_address, environment.master_port,
                                   error.what()));
  }
}

}  // namespace

void tell_agent_store(const Environment& environment, const MeetingPlace& place, Seconds timeout) {
  with_store(environment, timeout, [&](c10d::TCPStore& store) {
    const std::string text =
        fmt::format("{} {} {}", place.address, place.port, to_hex(place.secret));
    store.set(key_of(environment), std::vector<std::uint8_t>(text.begin(), text.end()));
    return 0;
  });
}

MeetingPlace ask_agent_store(const Environment& environment, Seconds timeout) {
  return with_store(environment, timeout, [&](c10d::TCPStore& store) {
    const auto bytes = store.get(key_of(environment));
    std::istringstream in(std::string(bytes.begin(), bytes.end()));
    MeetingPlace place;
    std::string hex;
    in >> place.address >> place.port >> hex;
    const auto secret = secret_from(hex);
    if (in.fail() || place.port == 0 || !secret)
      throw BackendError(fmt::format("torchrun's store at {}:{} says something else than rank 0",
                                     environment.master_address, environment.master_port));
    place.secret = *secret;
    return place;
  });
}

}  // namespace rehearse::runtime
