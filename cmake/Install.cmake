# cmake --install build --prefix P installs the command with all files that it reads, and librehearse.so with what programs need to use it. The
# folder P can be moved as a whole. It includes SimGrid. LibTorch, which is a hundred times as large, stays in the folder of tools/setup.

set(modules lib/rehearse) # engine/base/files/data_dir.cpp looks for them there
set_target_properties(rehearse PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
install(TARGETS rehearse RUNTIME DESTINATION bin)
set_target_properties(study PROPERTIES INSTALL_RPATH "$ORIGIN/rehearse") # SimGrid
install(TARGETS study LIBRARY DESTINATION lib)
foreach(header study/rehearse.h engine/base/errors.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION include/rehearse/${folder})
endforeach()
include(CMakePackageConfigHelpers)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/rehearseConfigVersion.cmake" VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES cmake/rehearseConfig.cmake "${CMAKE_BINARY_DIR}/rehearseConfigVersion.cmake" DESTINATION lib/cmake/rehearse)
if(REHEARSE_SIM)
  file(REAL_PATH "${REHEARSE_SIMGRID_ROOT}/lib/libsimgrid.so" simgrid_library)
  install(FILES "${simgrid_library}" DESTINATION ${modules})
endif()
foreach(module rehearse_training rehearse_device_cuda)
  if(TARGET ${module})
    set_target_properties(${module} PROPERTIES INSTALL_RPATH "$ORIGIN/.." INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS ${module} LIBRARY DESTINATION ${modules})
  endif()
endforeach()

set(data share/rehearse)
install(DIRECTORY models platforms software faults experiments validation DESTINATION ${data} FILES_MATCHING PATTERN "*.toml" PATTERN "*.csv")
install(DIRECTORY plots data search DESTINATION ${data}
  FILES_MATCHING PATTERN "*.py" PATTERN "*.jinja" PATTERN "*.css" PATTERN __pycache__ EXCLUDE)
install(PROGRAMS tools/setup tools/python DESTINATION ${data}/tools)
install(FILES tools/versions.env tools/simgrid.cmake DESTINATION ${data}/tools)
install(FILES README.md LICENSE DESTINATION share/doc/rehearse)
install(DIRECTORY docs examples DESTINATION share/doc/rehearse)

# The program generates these files from its own help.
install(CODE [[
  function(made_by_the_program destination name)
    set(made "$<TARGET_FILE_DIR:rehearse>/../made/${name}")
    file(MAKE_DIRECTORY "$<TARGET_FILE_DIR:rehearse>/../made")
    execute_process(COMMAND "$<TARGET_FILE:rehearse>" ${ARGN} OUTPUT_FILE "${made}" COMMAND_ERROR_IS_FATAL ANY)
    file(INSTALL "${made}" DESTINATION "${CMAKE_INSTALL_PREFIX}/share/${destination}")
  endfunction()
  made_by_the_program(man/man1 rehearse.1 help --man)
  made_by_the_program(bash-completion/completions rehearse completion bash)
  made_by_the_program(zsh/site-functions _rehearse completion zsh)
  made_by_the_program(fish/vendor_completions.d rehearse.fish completion fish)
]])
