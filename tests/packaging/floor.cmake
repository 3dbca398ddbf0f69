# scripts/test fails when ctest fails, and when fewer or many more tests are registered than the floor of the build.
# It runs here with stand-ins for bootstrap, cmake and ctest.
function(program path text)
  file(WRITE "${path}" "#!/bin/sh\n${text}\n")
  file(CHMOD "${path}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

file(REMOVE_RECURSE "${WORK}")
program("${WORK}/scripts/bootstrap" "")
program("${WORK}/bin/cmake" "")
program("${WORK}/bin/ctest" "case \"$*\" in
  *-N*) echo 'Total Tests: 9' ;;
  *) echo \"ran: $*\"; exit $FAKE_CTEST ;;
esac")
file(COPY "${SOURCE}/scripts/test" DESTINATION "${WORK}/scripts")

function(expect_code expected preset floor ctest_code)
  file(WRITE "${WORK}/build/${preset}/tests/floor" "${floor}\n")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "PATH=${WORK}/bin:$ENV{PATH}" FAKE_CTEST=${ctest_code}
      "${WORK}/scripts/test" --preset ${preset} -R core
    RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE text)
  if(NOT code EQUAL expected OR NOT output MATCHES "ran: --preset ${preset} -R core\n$")
    message(SEND_ERROR "${preset}, 9 tests, floor ${floor}, ctest ${ctest_code}: "
      "expected exit code ${expected} after ctest, found ${code}: ${output}${text}")
  endif()
endfunction()

expect_code(0 quick 9 0)
expect_code(8 quick 9 8)
expect_code(1 quick 10 0)
expect_code(8 quick 10 8)
expect_code(0 tsan 1 0)
expect_code(1 quick 0 0)
