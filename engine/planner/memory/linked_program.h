// From a job to the program that its ranks run: compiled, linked, and known to fit into memory.
#pragma once
#include <functional>

#include "engine/job/job.h"
#include "engine/link/link.h"

namespace rehearse::planner {

/// The job's program, linked with its model. Throws InputError where it cannot be compiled. It may
/// need more memory than the devices have.
link::LinkedProgram linked_program(const job::Job& job);
/// The same, for those who run it: also throws InputError as check_memory (fit.h) does where it
/// does not fit. `compiled`: called before the program is linked.
link::LinkedProgram fitting_program(const job::Job& job,
                                    const std::function<void()>& compiled = {});

}  // namespace rehearse::planner
