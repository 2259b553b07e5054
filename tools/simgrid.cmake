# Read by SimGrid's own CMake at its project() (CMAKE_PROJECT_INCLUDE, see tools/setup): 20 of its files are compiled as one,
# because most of the time of each goes into the same headers. What each option is worth: docs/performance.md.
#
# Each file has a log category that its macros find under one name, so that name is made another in each.
cmake_language(DEFER CALL set_target_properties simgrid PROPERTIES
  UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20 UNITY_BUILD_UNIQUE_ID ONE_OF_MANY
  UNITY_BUILD_CODE_BEFORE_INCLUDE "#undef _misuse_of_XBT_LOG_macros_detected__default
#define _misuse_of_XBT_LOG_macros_detected__default ONE_OF_MANY")
# The first defines what a header makes of it; the others have static functions of equal names.
cmake_language(DEFER CALL set_source_files_properties
  src/xbt/xbt_misc.cpp src/plugins/host_load.cpp src/plugins/link_energy.cpp src/plugins/link_energy_wifi.cpp
  src/plugins/link_load.cpp src/plugins/vm_load.cpp
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
