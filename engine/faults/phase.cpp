#include "engine/faults/phase.h"

namespace rehearse::faults {

std::optional<Phase> phase_of(const program::Work& work) {
  using R = std::optional<Phase>;
  return std::visit(program::overloaded{
                        [](const program::Compute& c) -> R {
                          return c.pass == program::Pass::forward ? Phase::forward
                                                                  : Phase::backward;
                        },
                        [](const program::Kernel&) -> R { return std::nullopt; },
                        [](const program::Update&) -> R { return Phase::update; },
                        [](const program::Copy&) -> R { return std::nullopt; },
                        [](const program::Save&) -> R { return Phase::save; },
                        [](const program::Pause&) -> R { return std::nullopt; },
                        [](const program::Issue&) -> R { return std::nullopt; },
                        [](const auto&) -> R { return Phase::exchange; },
                    },
                    work);
}

}  // namespace rehearse::faults
