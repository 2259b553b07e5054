# Installed, for find_package(rehearse): the target rehearse::rehearse, wherever the installation was moved.

get_filename_component(rehearse_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
add_library(rehearse::rehearse SHARED IMPORTED)
set_target_properties(rehearse::rehearse PROPERTIES
  IMPORTED_LOCATION "${rehearse_prefix}/lib/librehearse.so"
  INTERFACE_INCLUDE_DIRECTORIES "${rehearse_prefix}/include/rehearse"
  INTERFACE_COMPILE_FEATURES cxx_std_20)
unset(rehearse_prefix)
