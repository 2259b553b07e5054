// Which of this host's addresses ranks on other hosts reach it by.
#pragma once
#include <string>

namespace rehearse::runtime {

/// The address at which this host listens for ranks on other hosts. That is, in this order:
/// - of the network interface that `interface` names: "eth0", an address, or a network
/// "10.0.0.0/8";
/// - `name`, a host name, if it is an address of this host that is not the loopback, or
/// "localhost";
/// - of the first interface that is up and not the loopback, IPv4 before IPv6;
/// - the loopback.
/// Throws InputError that lists the interfaces when `interface` names none of them.
std::string address_for_other_hosts(const std::string& interface, const std::string& name = {});

/// Whether a host name is a name of this host.
bool is_this_host(const std::string& name);

/// This host's address as `other` (a numeric address) sees it: the local end of the route there.
/// Throws BackendError when there is no route.
std::string address_towards(const std::string& other);

}  // namespace rehearse::runtime
