// Grow: as shrink, and nodes that return join between two steps, at the price of a new plan
// (elastic training of Varuna and Bamboo).
#include "engine/goodput/policies/shrink.h"

namespace rehearse::goodput {
namespace {

const Register grow(job::RecoveryPolicy::grow,
                    {.summary = "as shrink; nodes that return join between two steps",
                     .source = "Varuna, EuroSys 2022; Bamboo, NSDI 2023",
                     .recover = go_on_with_fewer,
                     .grows = true,
                     .shrinks = true});

}  // namespace
}  // namespace rehearse::goodput
