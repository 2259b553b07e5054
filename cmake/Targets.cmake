# Functions that define targets, so that each folder's CMakeLists.txt only lists its content. Sources are found by pattern, so a new strategy,
# pass or test needs no change of a CMake file.

set(rehearse_warnings -Wall -Wextra -Werror)
if(REHEARSE_FUZZ)
  set(rehearse_warnings -w) # only g++ checks warnings
endif()

# rehearse_library(NAME PATTERNS pattern... LINK target...): an OBJECT library. Strategies register themselves, and from an archive the linker
# would drop objects that nobody references. A program gets the objects only if it links the library directly.
function(rehearse_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "PATTERNS;LINK")
  file(GLOB sources CONFIGURE_DEPENDS ${arg_PATTERNS})
  if(NOT sources)
    return()
  endif()
  add_library(${name} OBJECT ${sources})
  target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${rehearse_warnings})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  rehearse_link(${name} PUBLIC ${arg_LINK})
endfunction()

# rehearse_program(NAME SOURCES file... LINK target...)
function(rehearse_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${rehearse_warnings})
  rehearse_link(${name} PRIVATE ${arg_LINK})
endfunction()

# rehearse_module(NAME SOURCES file... LINK target...): a library for dlopen. It uses the loading program's copy of all libraries that are not
# named here, so that each library exists only once in the process.
function(rehearse_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
  add_library(${name} MODULE ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${rehearse_warnings})
  rehearse_link(${name} PRIVATE ${arg_LINK})
endfunction()

# rehearse_test(FOLDER LINK target...): builds FOLDER/**/*.cpp as the program test_FOLDER. Tests run in the source folder.
function(rehearse_test folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  rehearse_program(test_${folder} SOURCES "${CMAKE_SOURCE_DIR}/tests/main.cpp" ${sources} LINK ${arg_LINK} GTest::gtest GTest::gmock)
  set_property(GLOBAL APPEND PROPERTY rehearse_test_programs ${folder})
endfunction()

# Links only existing targets: a library of ours has no target if its folder is empty or switched off.
function(rehearse_link name scope)
  foreach(library IN LISTS ARGN)
    if(library MATCHES "::" OR TARGET ${library})
      target_link_libraries(${name} ${scope} ${library})
    endif()
  endforeach()
endfunction()

# rehearse_precompiled(NAME [LIKE target] HEADERS header... SKIP file...): precompiles these headers, and those that most files include, once for
# all files of a target and for targets that are compiled LIKE it. SKIP names files with flags of their own. Every file still includes what it
# uses, because clang-tidy reads it without the precompiled headers.
set(rehearse_headers <algorithm> <array> <cstdint> <functional> <limits> <map> <memory> <optional> <set> <span> <string> <unordered_map>
  <variant> <vector> <fmt/format.h> <fmt/ranges.h>)
function(rehearse_precompiled name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIKE" "HEADERS;SKIP")
  if(NOT TARGET ${name} OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  # ccache needs the first. The others: g++ 12 reports overruns of std::string that do not exist, and only for headers that are not precompiled
  # it keeps those to itself.
  target_compile_options(${name} PRIVATE -fpch-preprocess -Wno-array-bounds -Wno-restrict -Wno-stringop-overread
    -Wno-stringop-overflow)
  if(arg_LIKE)
    target_precompile_headers(${name} REUSE_FROM ${arg_LIKE})
  else()
    target_precompile_headers(${name} PRIVATE ${rehearse_headers} ${arg_HEADERS})
  endif()
  set_source_files_properties(${arg_SKIP} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# rehearse_joined(NAME [SKIP file...]): compiles the files of a target eight at a time, because they use the same templates (docs/performance.md has
# what that saves). Not those that SKIP names, nor those with options of their own. So two files of a namespace may not give two things one name, not
# even in a namespace without a name. CMake's UNITY_BUILD would write absolute paths, and clones could not share cached objects.
option(REHEARSE_JOINED "Compile the files of the engine, the simulator, the studies and the command eight at a time" ON)
function(rehearse_joined name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SKIP")
  if(NOT TARGET ${name} OR NOT REHEARSE_JOINED)
    return()
  endif()
  get_target_property(files ${name} SOURCES)
  list(SORT files)
  set(together "")
  foreach(file IN LISTS files)
    get_filename_component(path "${file}" ABSOLUTE)
    file(RELATIVE_PATH of_folder "${CMAKE_CURRENT_SOURCE_DIR}" "${path}")
    file(RELATIVE_PATH of_project "${CMAKE_SOURCE_DIR}" "${path}")
    get_source_file_property(options "${path}" COMPILE_OPTIONS)
    get_source_file_property(definitions "${path}" COMPILE_DEFINITIONS)
    if(NOT options AND NOT definitions AND NOT of_folder IN_LIST arg_SKIP)
      set_source_files_properties("${path}" PROPERTIES HEADER_FILE_ONLY ON)
      list(APPEND together "#include \"${of_project}\"\n")
    endif()
  endforeach()
  set(number 0)
  while(together)
    list(SUBLIST together 0 8 some)
    list(JOIN some "" text)
    set(joined "${CMAKE_CURRENT_BINARY_DIR}/joined/${number}.cpp")
    file(CONFIGURE OUTPUT "${joined}" CONTENT "${text}" @ONLY) # does not touch a file whose text is the same
    target_sources(${name} PRIVATE "${joined}")
    list(REMOVE_ITEM together ${some})
    math(EXPR number "${number} + 1")
  endwhile()
  target_compile_options(${name} PRIVATE -Wno-subobject-linkage) # g++ takes the joined files for headers
endfunction()

# rehearse_gloo_sources(file...): files that include c10d's ProcessGroupGloo.
function(rehearse_gloo_sources)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_DEFINITIONS USE_C10D_GLOO)
endfunction()
