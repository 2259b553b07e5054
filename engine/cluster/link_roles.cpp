#include "engine/cluster/link_roles.h"

#include <cctype>
#include <map>

namespace rehearse::cluster {
namespace {

/// "node3/nic0>fabric" becomes "node*/nic* - fabric".
std::string without_numbers(const std::string& name) {
  std::string out;
  bool number = false;
  for (const char c : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (digit && !number) out += '*';
    if (c == '>') out += " - ";
    if (!digit && c != '>') out += c;
    number = digit;
  }
  return out;
}

}  // namespace

std::vector<LinkRole> link_roles(const Cluster& cluster) {
  const auto links = cluster.links();
  std::vector<LinkRole> out;
  std::map<std::pair<std::string, double>, std::size_t> known;
  for (Id link = 0; link < links.size(); ++link) {
    // The two directions of a cable follow each other; the first one names both.
    const std::string name = without_numbers(links[link / 2 * 2].name);
    const auto [it, fresh] = known.try_emplace({name, links[link].bandwidth.value}, out.size());
    if (fresh) out.push_back({name, links[link].bandwidth});
    out[it->second].links.push_back(link);
  }
  return out;
}

}  // namespace rehearse::cluster
