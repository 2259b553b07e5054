#include "engine/planner/memory/linked_program.h"

#include "engine/link/workspace.h"
#include "engine/planner/memory/needs.h"

namespace rehearse::planner {

link::LinkedProgram linked_program(const job::Job& job) {
  return link::link(program_of(job), job.model);
}

link::LinkedProgram fitting_program(const job::Job& job, const std::function<void()>& compiled) {
  program::Program program = program_of(job);
  if (compiled) compiled();
  link::LinkedProgram linked = link::link(std::move(program), job.model);
  check_memory(linked, job.plan, job.model, job.cluster);
  return linked;
}

}  // namespace rehearse::planner
