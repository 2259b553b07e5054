# The CUDA language, and torch::cuda and nccl::nccl for the plug-in. nvcc comes from an installed CUDA 13 toolkit or from PyPI
# (nvidia-cuda-nvcc with nvidia-nvvm, nvidia-cuda-crt and nvidia-cuda-cccl are a complete compiler with CUB; tested with 13.0.88). NCCL comes
# from PyPI, in the version that torch was built with.
#
# The plug-in may include c10/cuda and nccl.h. It must not include ATen/cuda, which needs the headers of cuBLAS, cuSPARSE and cuSOLVER. Only a
# toolkit has them, so such a file would not compile on every machine.

file(GLOB pypi_cuda "${REHEARSE_CUDA_ROOT}/lib/python3*/site-packages/nvidia")
if(NOT pypi_cuda)
  message(FATAL_ERROR "NCCL is not in ${REHEARSE_CUDA_ROOT}: run tools/setup cuda")
endif()

# A toolkit of another major version would link another libcudart than torch.
foreach(candidate "$ENV{CUDA_HOME}/bin/nvcc" /usr/local/cuda/bin/nvcc "${pypi_cuda}/cu13/bin/nvcc")
  if(EXISTS "${candidate}" AND NOT CMAKE_CUDA_COMPILER)
    execute_process(COMMAND "${candidate}" --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
    if(nvcc_version MATCHES "release 13\\.")
      set(CMAKE_CUDA_COMPILER "${candidate}" CACHE FILEPATH "nvcc")
    endif()
  endif()
endforeach()
# A100; RTX 4090; H100 and, through its PTX, later GPUs.
set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90 CACHE STRING "Compute capabilities")
set(CMAKE_CUDA_RUNTIME_LIBRARY None) # torch's runtime is used, see below
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # nvcc has supported it since 12.0, but Debian 12's CMake does not know that
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)

add_library(nccl::nccl SHARED IMPORTED)
set_target_properties(nccl::nccl PROPERTIES
  IMPORTED_LOCATION "${pypi_cuda}/nccl/lib/libnccl.so.2"
  INTERFACE_INCLUDE_DIRECTORIES "${pypi_cuda}/nccl/include;${pypi_cuda}/cu13/include")

# The process must have a single libcudart, the one that is installed with torch.
cmake_path(GET torch_root PARENT_PATH site_packages)
add_library(torch::cudart SHARED IMPORTED)
set_target_properties(torch::cudart PROPERTIES IMPORTED_LOCATION "${site_packages}/nvidia/cu13/lib/libcudart.so.13")
add_library(torch::c10_cuda SHARED IMPORTED)
set_target_properties(torch::c10_cuda PROPERTIES IMPORTED_LOCATION "${torch_root}/lib/libc10_cuda.so")
add_library(torch::cuda SHARED IMPORTED)
set_target_properties(torch::cuda PROPERTIES
  IMPORTED_LOCATION "${torch_root}/lib/libtorch_cuda.so"
  INTERFACE_LINK_LIBRARIES "torch::cpu;torch::c10_cuda;torch::cudart")

# rehearse_cuda_module(NAME SOURCES file... LINK target...): a library for dlopen. It links without the other CUDA libraries, because the build
# machine may not have them. The program and its training module provide the symbols of our own code.
function(rehearse_cuda_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_library(${name} MODULE ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;-Werror=all-warnings;-fmad=false;--expt-relaxed-constexpr>") # as runtime/kernels
  target_link_libraries(${name} PRIVATE torch::cuda nccl::nccl ${arg_LINK})
  # LibTorch's kernels register themselves when libtorch_cuda is loaded, so it is linked although no symbol asks for it.
  target_link_options(${name} PRIVATE -Wl,--allow-shlib-undefined -Wl,--no-as-needed)
endfunction()
