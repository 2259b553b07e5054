// Prints what the linker found in a program, as text and as JSON, and says how a program from a
// file differs from the one that a job compiles to.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/link/link.h"

namespace rehearse::study {

/// `with_model`: the program was linked with its model, so its memory includes workspace and
/// batches.
std::string describe(const link::LinkedProgram& linked, bool with_model);
nlohmann::ordered_json to_json(const link::LinkedProgram& linked, bool with_model);

/// Why a program cannot be one of the job that compiles to `own`: another method, mesh, precision,
/// other roles, or states of another size. Empty: it can, but its ops may differ.
std::string of_another_job(const program::Program& program, const program::Program& own);

/// The first line in which a program's text differs from that of the job's program.
struct ProgramDifference {
  std::size_t line = 0;                // from 1; 0: they are equal
  std::string here = {}, of_job = {};  // that line; empty: the text has ended
  std::uint64_t job_hash = 0;          // of the job's program
};
ProgramDifference difference_of(const program::Program& program, const program::Program& own);
/// Empty when there is no difference.
std::string describe(const ProgramDifference& difference, const std::string& job);
/// Null when there is no difference.
nlohmann::ordered_json to_json(const ProgramDifference& difference);

}  // namespace rehearse::study
