# The CUDA language, and torch::cuda and nccl::nccl for the plug-in. nvcc is that of an installed CUDA 13 toolkit, or PyPI's
# (nvidia-cuda-nvcc with nvidia-nvvm, nvidia-cuda-crt and nvidia-cuda-cccl: a complete compiler, CUB included, tried at
# 13.0.88). NCCL is PyPI's, at the version torch was built with.
#
# The plug-in may include c10/cuda and nccl.h. ATen/cuda needs the headers of cuBLAS, cuSPARSE and cuSOLVER, which are only in
# a toolkit, so a file that includes it compiles on some machines and not on others.

file(GLOB pypi_cuda "${REHEARSE_CUDA_ROOT}/lib/python3*/site-packages/nvidia")
if(NOT pypi_cuda)
  message(FATAL_ERROR "NCCL is not in ${REHEARSE_CUDA_ROOT}: run tools/setup cuda")
endif()

# A toolkit of another major version links another libcudart than torch does.
foreach(candidate "$ENV{CUDA_HOME}/bin/nvcc" /usr/local/cuda/bin/nvcc "${pypi_cuda}/cu13/bin/nvcc")
  if(EXISTS "${candidate}" AND NOT CMAKE_CUDA_COMPILER)
    execute_process(COMMAND "${candidate}" --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
    if(nvcc_version MATCHES "release 13\\.")
      set(CMAKE_CUDA_COMPILER "${candidate}" CACHE FILEPATH "nvcc")
    endif()
  endif()
endforeach()
# A100; RTX 4090; H100 and, by its PTX, what comes later.
set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90 CACHE STRING "Compute capabilities")
set(CMAKE_CUDA_RUNTIME_LIBRARY None) # torch's, see below
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # nvcc has known it since 12.0, Debian 12's CMake not yet
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)

add_library(nccl::nccl SHARED IMPORTED)
set_target_properties(nccl::nccl PROPERTIES
  IMPORTED_LOCATION "${pypi_cuda}/nccl/lib/libnccl.so.2"
  INTERFACE_INCLUDE_DIRECTORIES "${pypi_cuda}/nccl/include;${pypi_cuda}/cu13/include")

# One libcudart in the process: the one beside torch.
cmake_path(GET torch_root PARENT_PATH site_packages)
add_library(torch::cudart SHARED IMPORTED)
set_target_properties(torch::cudart PROPERTIES IMPORTED_LOCATION "${site_packages}/nvidia/cu13/lib/libcudart.so.13")
add_library(torch::c10_cuda SHARED IMPORTED)
set_target_properties(torch::c10_cuda PROPERTIES IMPORTED_LOCATION "${torch_root}/lib/libc10_cuda.so")
add_library(torch::cuda SHARED IMPORTED)
set_target_properties(torch::cuda PROPERTIES
  IMPORTED_LOCATION "${torch_root}/lib/libtorch_cuda.so"
  INTERFACE_LINK_LIBRARIES "torch::cpu;torch::c10_cuda;torch::cudart")

# rehearse_cuda_module(NAME SOURCES file... LINK target...): a library for dlopen. It links without the rest of CUDA being
# there, which the machine that builds it may lack; the program and its training module bring what it uses of ours.
function(rehearse_cuda_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_library(${name} MODULE ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;-Werror=all-warnings>")
  target_link_libraries(${name} PRIVATE torch::cuda nccl::nccl ${arg_LINK})
  target_link_options(${name} PRIVATE -Wl,--allow-shlib-undefined)
endfunction()
