// Enumerators and their spelling in programs, job files and reports: one table each, used for
// printing and for parsing.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model.h"
#include "engine/plan.h"
#include "engine/program.h"

namespace rehearse {

/// Spellings in the order of the enumerators.
template <class E>
struct Names;
template <>
struct Names<DType> {
  static constexpr std::array all{"f32", "bf16", "f16", "i32", "u8"};
};
template <>
struct Names<Life> {
  static constexpr std::array all{"state", "buffer", "value"};
};
template <>
struct Names<Slot> {
  static constexpr std::array all{"param",       "grad",       "input",  "output", "saved",
                                  "grad_output", "grad_input", "stats",  "source", "target",
                                  "moment1",     "moment2",    "master", "norm",   "scale",
                                  "residual",    "threshold"};
};
template <>
struct Names<Match> {
  static constexpr std::array all{"sequence", "mailbox"};
};
template <>
struct Names<SegmentKind> {
  static constexpr std::array all{"embedding", "attention", "mlp", "head"};
};
template <>
struct Names<Pass> {
  static constexpr std::array all{"forward", "backward", "recompute"};
};
template <>
struct Names<Move> {
  static constexpr std::array all{"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                  "reduce"};
};
template <>
struct Names<Algorithm> {
  static constexpr std::array all{"automatic",        "ring",         "double_tree",
                                  "halving_doubling", "hierarchical", "direct"};
};
template <>
struct Names<Local> {
  static constexpr std::array all{"measure", "rescale", "select", "scatter_add", "cast", "observe"};
};
template <>
struct Names<Order> {
  static constexpr std::array all{"in_order", "arrival"};
};
template <>
struct Names<Optimizer> {
  static constexpr std::array all{"adamw", "sgd"};
};

template <>
struct Names<Selector> {
  static constexpr std::array all{"top_k", "random_k", "threshold"};
};
template <>
struct Names<Feedback> {
  static constexpr std::array all{"conserving", "printed", "literal"};
};
template <>
struct Names<Coding> {
  static constexpr std::array all{"index32", "bitmap", "delta16"};
};
template <>
struct Names<Reduction> {
  static constexpr std::array all{"dense", "sparse", "two_level"};
};
template <>
struct Names<Pipeline> {
  static constexpr std::array all{"1f1b", "gpipe", "interleaved"};
};

template <class E>
constexpr std::string_view name_of(E e) {
  return Names<E>::all[static_cast<std::size_t>(e)];
}
template <class E>
std::optional<E> from_name(std::string_view text) {
  for (std::size_t i = 0; i < Names<E>::all.size(); ++i)
    if (text == Names<E>::all[i]) return static_cast<E>(i);
  return std::nullopt;
}
template <class E>
std::vector<std::string> names_of() {
  return {Names<E>::all.begin(), Names<E>::all.end()};
}

}  // namespace rehearse
