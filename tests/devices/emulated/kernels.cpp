// The plug-in's kernels as a C++ compiler sees them: runtime/cuda/each.h.
// NOLINTBEGIN(bugprone-suspicious-include)
#include "runtime/cuda/kernels.cu"

#include "runtime/cuda/low_rank.cu"
#include "runtime/cuda/quantise.cu"
#include "runtime/cuda/scatter.cu"
#include "runtime/cuda/select.cu"
// NOLINTEND(bugprone-suspicious-include)
