#include "cli/chaos/interruption.h"

namespace rehearse::cli {
namespace {

volatile std::sig_atomic_t came = 0;

void note(int signal) { came = signal; }

}  // namespace

Interruption::Interruption() {
  came = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &interrupt_);
  sigaction(SIGTERM, &action, &terminate_);
}

Interruption::~Interruption() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
}

int Interruption::signal() { return came; }

}  // namespace rehearse::cli
