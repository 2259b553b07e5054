// The host as one more lane of each rank. A GPU program issues its kernels from one thread, which
// runs ahead of the device until it must wait for a result. Where issuing takes longer than the
// kernels, the device waits for the host:
//
//   host    |issue A |issue B |issue C |
//   device     |A   |   |B   |   |C   |      a host that is slower than the device
//
//   host    |A|B|C|
//   device    |A      |B      |C      |      a host that runs ahead
//
// `with_host_lane` makes this part of the program, so that every executor and every search predicts
// it by the rules that it follows anyway. An op may start when the host has issued all ops before
// it in program order; its own kernels are issued while it runs. Where the software makes the host
// wait (software::HostWait), the host issues the next op when that op has ended.
#pragma once
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// The program with a lane "host" in each role, or unchanged when the model's software issues in no
/// time. Roles whose order depends on arrivals (parameter servers) keep their lanes. Only for
/// predictions: real ranks issue by themselves.
program::Program with_host_lane(program::Program program, const model::ModelSpec& model);

}  // namespace rehearse::costs
