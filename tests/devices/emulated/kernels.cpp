// The plug-in's kernels as a C++ compiler sees them: runtime/cuda/each.h.
#include "runtime/cuda/kernels.cu"  // NOLINT(bugprone-suspicious-include)
