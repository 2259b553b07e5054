# SimGrid's own CMake reads this file at its project() (CMAKE_PROJECT_INCLUDE, see tools/setup). 20 of its files are compiled as one, because each
# file spends most of its compile time on the same headers. docs/performance.md has the effect of each option.
#
# Each file defines a log category under the same name, so the name is replaced by a unique one in each file.
cmake_language(DEFER CALL set_target_properties simgrid PROPERTIES
  UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20 UNITY_BUILD_UNIQUE_ID ONE_OF_MANY
  UNITY_BUILD_CODE_BEFORE_INCLUDE "#undef _misuse_of_XBT_LOG_macros_detected__default
#define _misuse_of_XBT_LOG_macros_detected__default ONE_OF_MANY")
# The first file defines a macro that changes a header. The others have static functions with equal names.
cmake_language(DEFER CALL set_source_files_properties
  src/xbt/xbt_misc.cpp src/plugins/host_load.cpp src/plugins/link_energy.cpp src/plugins/link_energy_wifi.cpp
  src/plugins/link_load.cpp src/plugins/vm_load.cpp
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
