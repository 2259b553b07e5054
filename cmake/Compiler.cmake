# Compiler options for all files.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()
# Asserts stay on in a release, because a wrong result costs the user more than the checks.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_DEBUG "-Og -g")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # No garbage is collected before g++ holds 1 GB: docs/performance.md has what that saves.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-expand=1000 --param ggc-min-heapsize=1000000>")
endif()

option(REHEARSE_SANITIZE "Build with the address and undefined-behaviour sanitizers" OFF)
if(REHEARSE_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()

option(REHEARSE_SANITIZE_THREADS "Build with the thread sanitizer" OFF)
if(REHEARSE_SANITIZE_THREADS)
  add_compile_options(-g1 -fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
endif()

option(REHEARSE_COVERAGE "Count which lines run (tools/coverage)" OFF)
if(REHEARSE_COVERAGE)
  add_compile_options(-O1 --coverage -fprofile-update=prefer-atomic)
  # tests/coverage writes the counts of the program and of all its libraries, so these must share what gcov knows and its open file.
  add_link_options(--coverage -Wl,--export-dynamic-symbol=__gcov_master,--export-dynamic-symbol=__gcov_var)
endif()

option(REHEARSE_FUZZ "Build the fuzzers, with clang's libFuzzer under both sanitizers" OFF)
if(REHEARSE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "Fuzzers need clang: cmake --preset fuzz, after tools/setup fuzz")
  endif()
  add_compile_options(-O1 -gline-tables-only -fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()

# Torch and SimGrid are found by rpath, so binaries run from the build tree. RPATH is used and not RUNPATH, because it also applies to the
# libraries that these libraries need.
add_link_options(-Wl,--disable-new-dtags -Wl,--as-needed)

find_program(CCACHE ccache)
if(CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # Relative paths let clones and worktrees share cached objects. ccache accepts precompiled headers because they contain no dates.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()
