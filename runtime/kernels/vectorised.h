// Loops that are compiled for AVX-512, AVX2 and plain x86-64; at run time the loader picks the
// version for the processor. All versions give the same bits, because their files are compiled
// without fused multiply-add (runtime/CMakeLists.txt). Not with a sanitizer: none supports such
// functions.
#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define REHEARSE_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define REHEARSE_VECTORISED
#endif
