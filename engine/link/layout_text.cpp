#include "engine/link/layout_text.h"

#include <fmt/format.h>

namespace rehearse::link {

std::string text_of(const program::Program& program, program::Layout layout) {
  auto axes = [&](program::Axes a) {
    std::string out;
    for (unsigned i = 0; i < 32; ++i)
      if (a >> i & 1)
        out += (out.empty() ? "" : ",") +
               (i < program.mesh.size() ? program.mesh[i].name : fmt::format("g{}", i));
    return out;
  };
  std::string out;
  if (layout.partial) out += "partial sum over " + axes(layout.partial);
  if (layout.shard) out += (out.empty() ? "" : " and ") + ("shard over " + axes(layout.shard));
  if (layout.own)
    out += (out.empty() ? "" : " and ") + ("value of each rank along " + axes(layout.own));
  return out.empty() ? "copy" : out;
}

}  // namespace rehearse::link
