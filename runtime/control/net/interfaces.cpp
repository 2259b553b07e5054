#include "runtime/control/net/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/errors.h"
#include "runtime/control/net/socket.h"

namespace rehearse::runtime {
namespace {

/// An address as bytes: 4 of IPv4, 16 of IPv6.
using AddressBytes = std::vector<unsigned char>;

struct Interface {
  std::string name = {}, address = {};
  AddressBytes bytes = {};
  bool is_loopback = false;
};

AddressBytes bytes_of(const sockaddr& address) {
  const auto copy = [](const auto& field) {
    const auto* first = reinterpret_cast<const unsigned char*>(&field);
    return AddressBytes(first, first + sizeof field);
  };
  return address.sa_family == AF_INET
             ? copy(reinterpret_cast<const sockaddr_in&>(address).sin_addr)
             : copy(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

std::optional<AddressBytes> bytes_of(const std::string& address) {
  std::array<unsigned char, 16> bytes = {};
  for (const int family : {AF_INET, AF_INET6})
    if (inet_pton(family, address.c_str(), bytes.data()) == 1)
      return AddressBytes(bytes.begin(), bytes.begin() + (family == AF_INET ? 4 : 16));
  return std::nullopt;
}

/// Those that are up, IPv4 first. Without link-local addresses, which are of one link only.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, &freeifaddrs);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      if ((one->ifa_flags & IFF_UP) == 0) continue;
      std::array<char, INET6_ADDRSTRLEN> text = {};
      const AddressBytes bytes = bytes_of(*one->ifa_addr);
      if (family == AF_INET6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80) continue;
      inet_ntop(family, bytes.data(), text.data(), text.size());
      found.push_back({one->ifa_name, text.data(), bytes, (one->ifa_flags & IFF_LOOPBACK) != 0});
    }
  return found;
}

/// Whether an address is in a network of so many leading bits.
bool in(const AddressBytes& address, const AddressBytes& network, int bits) {
  if (address.size() != network.size() || bits > static_cast<int>(8 * network.size())) return false;
  for (int bit = 0; bit < bits; ++bit) {
    const auto byte = static_cast<std::size_t>(bit / 8);
    if (((address[byte] ^ network[byte]) & (0x80 >> bit % 8)) != 0) return false;
  }
  return true;
}

bool matches(const Interface& interface, const std::string& stated) {
  if (interface.name == stated || interface.address == stated) return true;
  const auto slash = stated.find('/');
  if (slash == std::string::npos) return false;
  const auto network = bytes_of(stated.substr(0, slash));
  int bits = -1;
  const char* end = stated.data() + stated.size();
  const auto [at, error] = std::from_chars(stated.data() + slash + 1, end, bits);
  return network && error == std::errc() && at == end && bits >= 0 &&
         in(interface.bytes, *network, bits);
}

std::vector<AddressBytes> addresses_of(const std::string& name) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (name.empty() || getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(list, &freeaddrinfo);
  std::vector<AddressBytes> found;
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next)
    found.push_back(bytes_of(*a->ai_addr));
  return found;
}

}  // namespace

std::string address_for_other_hosts(const std::string& interface, const std::string& name) {
  const std::vector<Interface> all = interfaces();
  if (!interface.empty()) {
    for (const Interface& i : all)
      if (matches(i, interface)) return i.address;
    std::vector<std::string> known;
    for (const Interface& i : all) known.push_back(fmt::format("{} ({})", i.name, i.address));
    throw InputError(fmt::format(
        "run.interface: \"{}\" is no network interface of {}, no address of one, and no network "
        "that it is in; there are {}",
        interface, host_name(), fmt::join(known, ", ")));
  }
  const std::vector<AddressBytes> named = addresses_of(name);
  // Unlike 127.0.1.1, which some hosts call themselves, this is never meant for other hosts.
  if (std::ranges::find(named, *bytes_of(loopback)) != named.end()) return loopback;
  const auto outer = [](const Interface& i) { return !i.is_loopback; };
  const auto is_named = [&](const Interface& i) {
    return outer(i) && std::ranges::find(named, i.bytes) != named.end();
  };
  auto found = std::ranges::find_if(all, is_named);
  if (found == all.end()) found = std::ranges::find_if(all, outer);
  return found == all.end() ? loopback : found->address;
}

bool is_this_host(const std::string& name) {
  const std::vector<Interface> all = interfaces();
  return std::ranges::any_of(addresses_of(name), [&](const AddressBytes& address) {
    return (address.size() == 4 && address[0] == 127) ||
           std::ranges::find(all, address, &Interface::bytes) != all.end();
  });
}

std::string address_towards(const std::string& other) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(other.c_str(), "9", &hints, &found) != 0) return other;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  const Fd fd(socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket sends nothing; it only chooses the route.
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0)
    throw BackendError(fmt::format("no way to {}: {}", other, error_text(errno)));
  return local_address(fd.get());
}

}  // namespace rehearse::runtime
