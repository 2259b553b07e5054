# What ctest runs: this file is read when ctest starts. Each suite of a test program is an entry, and so is each Python script.
#
# A process of the runtime's tests needs 0.3 s to load LibTorch, so tests of a suite share one. A suite of many tests is cut into shards, so
# that all processors have work until the end. Tests of one suite do not depend on each other.
#
# Each entry has one label: `fast` (make test), `long` (after it in .ci/run), `soak` (alone, in make soak, which also runs `long`).
# docs/testing.md says which tests are which.

# The suites that train: they run on the CPU, and again on the devices of tests/devices.
set(rehearse_on_queues "^(Registry/Method|Methods/SentBytes|.*/DividedSequences|.*/Apart|ApartRuns|FreeRunning|All/QuantisedRuns|All/SparseRuns|\
.*/OneBitAdamRuns|.*/PowerSgdRuns|SkippedUpdates|All/SparseInvariants|.*/SparseOverflow|Layouts/ObservedRun|ObservedRuns|All/Order|\
All/SteadyState|All/SteadyStateOf)$")

# The entries of a test program.
function(rehearse_suites folder program source_folder)
  if(NOT EXISTS "${program}")
    add_test("${folder}.not_built" "${program}")
    set_tests_properties("${folder}.not_built" PROPERTIES LABELS fast)
    return()
  endif()
  execute_process(COMMAND "${program}" --gtest_list_tests OUTPUT_VARIABLE listed WORKING_DIRECTORY "${source_folder}"
    COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "#[^\n]*" "" listed "${listed}") # values of parameters
  string(REGEX MATCHALL "[^\n]+" lines "${listed}")
  list(APPEND lines "end.")
  set(suite "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^  ")
      math(EXPR count "${count} + 1")
    elseif(line MATCHES "^([A-Za-z0-9_/]+)\\.")
      set(next "${CMAKE_MATCH_1}")
      if(suite)
        rehearse_suite("${folder}" "${program}" "${source_folder}" "${suite}" ${count})
      endif()
      set(suite "${next}")
      set(count 0)
    endif()
  endforeach()
endfunction()

function(rehearse_suite folder program source_folder suite count)
  set(label fast)
  set(most 24) # tests of a shard
  set(more "")
  if(suite MATCHES "(^|/)Soak")
    set(label soak)
    set(more RUN_SERIAL ON)
  elseif(suite MATCHES "(^|/)Long")
    set(label long)
    # Tests of Method share the plain training that they are compared with; others are long each.
    if(NOT suite MATCHES "/Method$")
      set(most 8)
    endif()
  endif()
  math(EXPR shards "(${count} + ${most} - 1) / ${most}")
  math(EXPR last "${shards} - 1")
  foreach(shard RANGE ${last})
    set(name "${folder}.${suite}")
    if(shards GREATER 1)
      math(EXPR number "${shard} + 1")
      string(APPEND name ".${number}of${shards}")
    endif()
    set(shard_of "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${shard}")
    add_test("${name}" "${program}" "--gtest_filter=${suite}.*" --gtest_brief=1)
    set_tests_properties("${name}" PROPERTIES WORKING_DIRECTORY "${source_folder}" LABELS ${label} TIMEOUT 1800 COST ${count} ${more}
      ENVIRONMENT "${shard_of}")
    if(folder STREQUAL "runtime" AND suite MATCHES "${rehearse_on_queues}")
      foreach(device queues emulated)
        if(device STREQUAL "emulated" AND suite MATCHES "^(Methods/SentBytes|All/SteadyState.*)$")
          continue() # NCCL does not tell what it sends; copies in host memory stand in for kernels that the GPU lacks
        endif()
        add_test("${name}.${device}" "${program}" "--gtest_filter=${suite}.*" --gtest_brief=1)
        set_tests_properties("${name}.${device}" PROPERTIES WORKING_DIRECTORY "${source_folder}" LABELS soak TIMEOUT 1800 COST ${count}
          ENVIRONMENT "${shard_of};REHEARSE_TEST_DEVICE=${device}")
      endforeach()
    endif()
  endforeach()
endfunction()

# The entries of a Python script: one for each label that tests in it have. pytest runs files without a main part of their own.
function(rehearse_script name file python source_folder environment)
  file(STRINGS "${file}" marks REGEX "pytest.mark.(soak|long)")
  file(STRINGS "${file}" whole REGEX "^(pytestmark = .*|    )pytest.mark.(soak|long)")
  file(STRINGS "${file}" main REGEX "^if __name__ ==")
  set(command "${python}" -m pytest "${file}")
  if(main)
    set(command "${python}" "${file}")
  endif()
  set(labels)
  if(NOT whole)
    list(APPEND labels fast)
  endif()
  foreach(label long soak)
    if(marks MATCHES "pytest.mark.${label}")
      list(APPEND labels ${label})
    endif()
  endforeach()
  set(select_fast -m "not soak and not long")
  set(select_long -m long)
  set(select_soak -m "soak and not long")
  if(NOT marks)
    set(select_fast "") # scripts without pytest take no option
  endif()
  foreach(label IN LISTS labels)
    set(entry "${name}")
    set(more "")
    if(NOT label STREQUAL "fast")
      string(APPEND entry ".${label}")
    endif()
    if(label STREQUAL "soak")
      set(more RUN_SERIAL ON)
    endif()
    add_test("${entry}" ${command} ${select_${label}})
    set_tests_properties("${entry}" PROPERTIES WORKING_DIRECTORY "${source_folder}" LABELS ${label} TIMEOUT 1800 COST 50 SKIP_RETURN_CODE 77
      ENVIRONMENT "${environment}" ${more})
  endforeach()
endfunction()
