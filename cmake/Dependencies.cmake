# Libraries: Debian's packages, and SimGrid and LibTorch from the folders of tools/setup.

execute_process(
  COMMAND "${CMAKE_SOURCE_DIR}/tools/setup" where
  OUTPUT_VARIABLE rehearse_where OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" rehearse_where "${rehearse_where}")
foreach(line IN LISTS rehearse_where)
  string(REGEX MATCH "^([A-Z_]+)=(.*)$" _ "${line}")
  set(REHEARSE_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS tools/versions.env)

find_package(Threads REQUIRED)
find_package(Boost REQUIRED) # Boost.Graph and Boost.Math, headers only
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)

if(REHEARSE_SIM)
  include(SimGrid)
endif()
# Debian's package has no CMake files.
find_library(csv_library csv REQUIRED) # libcsv has no CMake package
add_library(csv::csv UNKNOWN IMPORTED)
set_target_properties(csv::csv PROPERTIES IMPORTED_LOCATION ${csv_library})
# NLopt's CMake target adds a definition to every file that links it.
find_library(nlopt_library nlopt REQUIRED)
add_library(nlopt::nlopt UNKNOWN IMPORTED)
set_target_properties(nlopt::nlopt PROPERTIES IMPORTED_LOCATION ${nlopt_library})
find_library(xxhash_library xxhash REQUIRED)
add_library(xxhash::xxhash UNKNOWN IMPORTED)
set_target_properties(xxhash::xxhash PROPERTIES IMPORTED_LOCATION "${xxhash_library}")
find_library(sodium_library sodium REQUIRED)
add_library(sodium::sodium UNKNOWN IMPORTED)
set_target_properties(sodium::sodium PROPERTIES IMPORTED_LOCATION "${sodium_library}")
if(REHEARSE_RUNTIME)
  include(Torch)
  if(REHEARSE_CUDA)
    include(Cuda)
  endif()
endif()
if(REHEARSE_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
endif()
if(REHEARSE_BENCH)
  find_package(benchmark REQUIRED)
endif()
