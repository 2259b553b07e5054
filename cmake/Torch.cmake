# torch::cpu, the CPU part of the wheel in the private Python environment. It is defined by hand, because find_package(Torch) requires a CUDA
# toolkit that matches the wheel, and a CPU program does not need one.
#
# c10d::ProcessGroupGloo is in libtorch_cpu.so, but the wheel lacks Gloo's headers. Files that include it are compiled against Debian's
# libgloo-dev with USE_C10D_GLOO (see rehearse_gloo_sources). Debian's libgloo itself must never be linked, because libtorch_cpu exports the
# same symbols in another version.

file(GLOB torch_root "${REHEARSE_PYTHON_ROOT}/lib/python3*/site-packages/torch")
if(NOT torch_root)
  message(FATAL_ERROR "LibTorch is not in ${REHEARSE_PYTHON_ROOT}: run tools/setup, or configure with -DREHEARSE_RUNTIME=OFF")
endif()

# The wheel has headers of another version of fmt; the headers of the fmt that we link must be found first.
find_path(fmt_headers fmt/core.h PATHS /usr/include NO_DEFAULT_PATH REQUIRED)
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/system-first")
file(CREATE_LINK "${fmt_headers}/fmt" "${CMAKE_BINARY_DIR}/system-first/fmt" SYMBOLIC)

add_library(torch::c10 SHARED IMPORTED)
set_target_properties(torch::c10 PROPERTIES IMPORTED_LOCATION "${torch_root}/lib/libc10.so")
add_library(torch::cpu SHARED IMPORTED)
set_target_properties(torch::cpu PROPERTIES
  IMPORTED_LOCATION "${torch_root}/lib/libtorch_cpu.so"
  INTERFACE_INCLUDE_DIRECTORIES
    "${CMAKE_BINARY_DIR}/system-first;${torch_root}/include;${torch_root}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES "torch::c10;Threads::Threads")
# libtorch_cpu must be linked even if no symbol of it is used, because it registers operators when it is loaded.
set_property(TARGET torch::cpu APPEND PROPERTY INTERFACE_LINK_OPTIONS -Wl,--no-as-needed)
