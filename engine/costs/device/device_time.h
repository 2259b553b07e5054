// Seconds of local work from the device table. A pass is a list of kernels (model::launches_of),
// and the device runs one after the other:
//
//   memory     bytes / (memory bandwidth x memory efficiency) + launch
//   product    max(tiles, operands and result as of a memory kernel) + launch
//   attention  flops / (peak x efficiency x attention efficiency) + launch
//   product of 8-bit operands: the same at the peak of FP8
//   flash      flops that it computes / (peak x efficiency x flash efficiency x rate) + launch
//
// Tiles of a product. The kernel cuts the result into tiles, and each multiprocessor computes one
// at a time, so the last wave may leave most of them idle (wave quantisation):
//
//   rows            tiles of 128 x 128 on 108 multiprocessors: 1,024 x 3,072 are 8 x 24 = 192
//   +--+--+--+      tiles, 2 waves of which the second is 78% full
//   |  |  |  |
//   +--+--+--+      seconds = waves x 2 x tile x (inner + prologue) / (rate of a multiprocessor)
//    columns
//
// Of several tile sizes the fastest is taken, as libraries do. Small tiles use the multiprocessor
// less well. A kind without multiprocessors (a CPU core) has no tiles.
#pragma once
#include "engine/cluster/cluster.h"
#include "engine/model/launches.h"
#include "engine/model/model.h"
#include "engine/program/program.h"

namespace rehearse::costs {

/// Whether the kind can compute in this dtype.
bool computes_in(const cluster::DeviceKind& kind, program::DType dtype);
/// One pass of a segment over `samples` samples on one of `tp` ranks. Throws InputError when the
/// kind cannot compute in this dtype.
double compute_seconds(const cluster::DeviceKind& kind, const model::ModelSpec& model, Id segment,
                       program::Pass pass, int samples, model::TensorSplit split,
                       program::DType dtype, const model::Piece& piece = {});
/// One kernel. `tf32`: products of f32 tensors may use TF32.
double launch_seconds(const cluster::DeviceKind& kind, const model::Launch& launch,
                      program::DType dtype, bool tf32);
/// A kernel that touches `bytes` (read plus written).
double kernel_seconds(const cluster::DeviceKind& kind, double bytes);
/// `launches` kernels that touch `bytes` and compute `flops` in fp32, together.
double kernel_seconds(const cluster::DeviceKind& kind, double bytes, double flops, int launches);

}  // namespace rehearse::costs
