// What a cluster consists of, as tables. Private to Cluster.
#pragma once
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cluster/routes/routes.h"
#include "engine/cluster/routes/torus.h"

namespace rehearse::cluster {

struct Tables {
  std::string name = {};
  std::vector<DeviceKind> kinds = {};
  std::vector<Device> devices = {};
  std::vector<Id> vertex_of = {};  // by device
  std::vector<RouteVertex> vertices = {};
  std::vector<std::pair<Id, Id>> ends = {};  // by cable; cable k has links 2k and 2k + 1
  std::vector<Link> links = {};
  int nodes = 0, shared_cores = 0;
  software::Library library = {};
  std::set<Id> on_summing_switch = {};              // vertices of devices
  std::map<std::pair<Id, Id>, double> cables = {};  // between vertices of devices
  std::vector<Host> hosts = {};                     // by node
  Disk shared_disk = {};
  std::map<Id, Id> arithmetic = {};  // by switch that let_sum named: its link to NAME/sums
  Torus torus = {};
  std::map<Id, Id> flows = {};  // by cable: the first of its flows, two for each node
};

}  // namespace rehearse::cluster
