#include "engine/cluster/platform/platform_storage.h"

#include "engine/base/numbers/limits.h"

namespace rehearse::cluster {
namespace {

constexpr Limits size{.least = 0, .most = 1e21};

Disk read_disk(const Config& file, const std::string& key) {
  const Config c = file.section(key);
  if (!file.has(key)) return {};
  return {.size = c.bytes("size", Bytes(0), size),
          .read = c.bandwidth("read", std::nullopt, limits::bandwidth),
          .write = c.bandwidth("write", std::nullopt, limits::bandwidth)};
}

}  // namespace

Host read_host(const Config& nodes, BytesPerSecond widest) {
  Host host;
  host.memory = nodes.bytes("host_memory", Bytes(0), limits::reserve);
  host.link = nodes.bandwidth("host_link", BytesPerSecond(0), limits::maybe_bandwidth);
  if (host.link.value == 0) host.link = widest;
  host.bandwidth = nodes.bandwidth("host_bandwidth", BytesPerSecond(0), limits::maybe_bandwidth);
  host.disk = read_disk(nodes, "disk");
  host.price = read_price(nodes);
  if (host.memory.value > 0 && host.link.value == 0)
    throw nodes.error("host_memory",
                      "needs host_link: no cable of gpu0 but NVLink says how fast it is reached");
  return host;
}

Disk read_shared_disk(const Config& file) { return read_disk(file, "shared_disk"); }

}  // namespace rehearse::cluster
