#include "runtime/control/together.h"

#include <fmt/format.h>

#include <vector>

#include "engine/base/errors.h"

namespace rehearse::runtime {
namespace {

// The first character of the text that a rank gathers: the outcome of its work.
constexpr char good = 'g', refused = 'r', failed = 'f';

}  // namespace

void together(Control& control, const std::string& what, const std::function<void()>& work,
              LaneProgress* lane) {
  if (lane != nullptr) lane->become(LaneState::working);
  std::string mine(1, good);
  try {
    work();
  } catch (const InputError& error) {
    mine = refused + std::string(error.what());
  } catch (const std::exception& error) {
    mine = failed + std::string(error.what());
  }
  if (lane != nullptr) lane->become(LaneState::communicating);
  const std::vector<std::string> all =
      control.gather(what, mine, lane != nullptr ? until_verdict : Seconds(0));
  for (const std::string& said : all)
    if (said.front() == refused) throw InputError(said.substr(1));
  if (mine.front() == failed) throw BackendError(mine.substr(1));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].front() == failed)
      throw BackendError(fmt::format("rank {}: {}", rank, all[rank].substr(1)));
}

}  // namespace rehearse::runtime
