// Where state can be kept besides the memory of devices: the memory of a node's host, a disk of the
// node, and a file system that all nodes share. A platform file states them (docs/platforms.md).
// What a platform does not state is not known and reads as 0.
#pragma once
#include "engine/base/units.h"
#include "engine/cluster/price.h"

namespace rehearse::cluster {

/// A disk of a node, or a whole shared file system. The rates are those of all its readers or
/// writers together.
struct Disk {
  Bytes size = {};  // 0: not known
  BytesPerSecond read = {}, write = {};
  bool known() const { return read.value > 0 && write.value > 0; }
};

/// The host side of a node, and its price.
struct Host {
  Bytes memory = {};              // 0: not known
  BytesPerSecond link = {};       // from one device to the host's memory, while all devices copy
  BytesPerSecond bandwidth = {};  // at which all cores together read and write that memory
  Disk disk = {};                 // local to the node, lost with it
  Price price = {};               // of the whole node; not known: its devices have prices
};

}  // namespace rehearse::cluster
