// Interprets a migration program on numbers, each of which identifies its tensor and element.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/link/link.h"
#include "engine/methods/strategy.h"
#include "engine/migration/migration.h"
#include "engine/tensors/tensor_parts.h"
#include "tests/engine/interpret.h"

namespace rehearse::migration {

/// The number at element i of a whole tensor. It is an integer, so that sums are exact.
inline double content(const tensors::PartKey& key, std::int64_t i) {
  const auto name = static_cast<double>(std::hash<std::string>()(key.tensor) % 1000);
  const tensors::StorageKind kind =
      key.kind == tensors::StorageKind::master ? tensors::StorageKind::param : key.kind;
  return (static_cast<double>(kind) * 1000 + name) * 1e6 + 10 * static_cast<double>(i) +
         (kind == tensors::StorageKind::residual ? 1e11 * (1 + key.copy) : 0);
}

/// The elements of a part, computed as checkpoints do (tensors::copy_part).
inline std::vector<double> contents(const tensors::PartKey& key, const model::ModelSpec& model) {
  std::vector<double> part(static_cast<std::size_t>(key.end - key.begin));
  for (const model::ParamGroup& group : model.groups)
    for (const model::TensorSpec& spec : group.tensors) {
      if (spec.name != key.tensor) continue;
      std::vector<double> whole(static_cast<std::size_t>(tensors::elements_of(spec)));
      for (std::size_t i = 0; i < whole.size(); ++i)
        whole[i] = content(key, static_cast<std::int64_t>(i));
      copy_part(spec, group.split, key.tp_rank, key.tp_size, key.begin, key.end, sizeof(double),
                reinterpret_cast<std::byte*>(whole.data()),
                reinterpret_cast<std::byte*>(part.data()), tensors::Direction::to_part);
      return part;
    }
  for (std::size_t i = 0; i < part.size(); ++i)
    part[i] = content(key, key.begin + static_cast<std::int64_t>(i));
  return part;
}

struct Moved {
  link::LinkedProgram from = {}, to = {}, linked = {};
  Migration migration = {};
  std::vector<std::vector<tensors::TensorPart>> old_parts = {}, new_parts = {};
  std::vector<test::Memory> memory = {};
};

inline std::vector<std::vector<tensors::TensorPart>> all_parts(const link::LinkedProgram& linked,
                                                               const model::ModelSpec& model) {
  const std::vector<tensors::RankMap> maps = tensors::map_tensors(linked, model);
  std::vector<std::vector<tensors::TensorPart>> parts;
  for (Id rank = 0; rank < maps.size(); ++rank)
    parts.push_back(parts_of(linked, model, maps, rank));
  return parts;
}

/// The storage of the migration program that holds a part.
inline Id storage_of(const Moved& m, Id rank, bool old, const tensors::TensorPart& part) {
  const auto& states = m.migration.states[rank];
  for (Id s = 0; s < states.size(); ++s)
    if (states[s].storage == part.storage && states[s].old == old && states[s].age == part.key.age)
      return s;
  return none;
}

inline Moved moved(link::LinkedProgram from, link::LinkedProgram to, const model::ModelSpec& model,
                   const MigrationOptions& options = {}) {
  Moved m{.from = std::move(from), .to = std::move(to)};
  m.migration = migrate(m.from, m.to, model, options);
  m.linked = link::link(m.migration.program);
  m.old_parts = all_parts(m.from, model), m.new_parts = all_parts(m.to, model);
  for (const program::Role& role : m.linked.program.roles) {
    m.memory.emplace_back();
    for (const program::Storage& storage : role.storages)
      m.memory.back().emplace_back(static_cast<std::size_t>(storage.elements), 0.0);
  }
  for (Id rank = 0; rank < m.old_parts.size(); ++rank)
    for (const tensors::TensorPart& part : m.old_parts[rank]) {
      const std::vector<double> values = contents(part.key, model);
      std::copy(values.begin(), values.end(),
                m.memory[rank][storage_of(m, rank, true, part)].begin() + part.begin);
    }
  test::interpret(m.linked, m.memory);
  return m;
}

inline Moved moved(const plan::Plan& from, const plan::Plan& to, const model::ModelSpec& model,
                   const MigrationOptions& options = {}) {
  return moved(link::link(methods::compile(from, model)), link::link(methods::compile(to, model)),
               model, options);
}

/// Expects all state except residuals to be where the new plan has it.
inline void expect_arrived(const Moved& m, const model::ModelSpec& model,
                           const std::vector<Id>& plays = {}) {
  bool scaled = false;
  for (const tensors::TensorPart& part : m.old_parts[0])
    scaled |= part.key.kind == tensors::StorageKind::scale;
  for (Id process = 0; process < m.new_parts.size(); ++process)
    for (const tensors::TensorPart& part : m.new_parts[plays.empty() ? process : plays[process]]) {
      if (part.key.kind == tensors::StorageKind::residual ||
          part.key.kind == tensors::StorageKind::other)
        continue;
      if (part.key.kind == tensors::StorageKind::scale && !scaled)
        continue;  // the scale starts as in a new run
      const auto& storage = m.memory[process][storage_of(m, process, false, part)];
      const auto begin = storage.begin() + part.begin;
      const std::vector<double> found(begin, begin + (part.key.end - part.key.begin));
      ASSERT_EQ(found, contents(part.key, model)) << "rank " << process << " " << part.key.text();
    }
}

}  // namespace rehearse::migration
