# simgrid::simgrid, the SimGrid that tools/setup built.

if(NOT EXISTS "${REHEARSE_SIMGRID_ROOT}/include/simgrid/s4u.hpp")
  message(FATAL_ERROR "SimGrid is not in ${REHEARSE_SIMGRID_ROOT}: run tools/setup, or configure with -DREHEARSE_SIM=OFF")
endif()
add_library(simgrid::simgrid SHARED IMPORTED)
set_target_properties(simgrid::simgrid PROPERTIES
  IMPORTED_LOCATION "${REHEARSE_SIMGRID_ROOT}/lib/libsimgrid.so"
  INTERFACE_INCLUDE_DIRECTORIES "${REHEARSE_SIMGRID_ROOT}/include")
