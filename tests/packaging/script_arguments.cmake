# The scripts refuse what cannot work before they install or build anything.
function(expect_refusal script expected)
  execute_process(COMMAND "${SOURCE}/scripts/${script}" ${ARGN}
    RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE text)
  if(code EQUAL 0 OR NOT text MATCHES "${expected}" OR output)
    message(SEND_ERROR "${script} ${ARGN}: expected a failure and '${expected}', "
      "found exit code ${code}: ${output}${text}")
  endif()
endfunction()

expect_refusal(demo "^demo: error: expected a number of ranks from 1 to 9999, found '0'" --ranks 0)
expect_refusal(demo "^demo: error: expected a number of ranks from 1 to 9999, found 'two'"
  --ranks=two)
expect_refusal(demo "^demo: error: expected a value after --ranks" --ranks)
expect_refusal(demo "^demo: error: expected a readable text file, found '/nonexistent.txt'"
  --text /nonexistent.txt)
expect_refusal(bootstrap "^bootstrap: error: unknown option '--torch' \\(known: --no-torch, --libtorch VERSION, --browser, --fuzz, --tidy\\)"
  --torch)
expect_refusal(bootstrap "expected a version after --libtorch, such as" --libtorch)
expect_refusal(test "scripts/test: error: expected a preset's name after --preset" --preset)
expect_refusal(test "scripts/test: error: expected a version after --libtorch, such as" --libtorch)
expect_refusal(fuzz "^fuzz: error: no target is called 'journl', expected one of: config .* signals"
  journl)
expect_refusal(fuzz "^fuzz: error: expected a number after --runs, found 'many'" --runs many)
expect_refusal(fuzz "^fuzz: error: unknown option '--run'" --run 5)

# Tools that answer for the machine's: all packages are there, and CMake prints its arguments and fails.
function(fake_tool name text)
  file(WRITE "${WORK}/tools/${name}" "#!/bin/sh\n${text}\n")
  file(CHMOD "${WORK}/tools/${name}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
file(REMOVE_RECURSE "${WORK}")
fake_tool(dpkg-query "shift 3\nfor name; do echo \"ii $name\"; done")
fake_tool(cmake "echo \"$@\"\nexit 1")
file(STRINGS "${SOURCE}/scripts/bootstrap" wheels REGEX "^test_wheels=")
string(REGEX MATCHALL "[a-z]+-[0-9.]+" wheels "${wheels}")
foreach(wheel IN LISTS wheels)
  file(MAKE_DIRECTORY "${WORK}/cache/${wheel}")
endforeach()
set(asked "${WORK}/cache/libtorch-2.15.9")
file(WRITE "${asked}/complete" "torch==2.15.9\n")

# The version that is asked for comes before the one of an environment that is active.
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env "PATH=${WORK}/tools:$ENV{PATH}" "COX_CACHE=${WORK}/cache"
    "VIRTUAL_ENV=${WORK}/environment" "COX_TORCH_ROOT=${WORK}/environment"
    "${SOURCE}/scripts/test" --libtorch 2.15.9
  RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(code EQUAL 0 OR NOT text MATCHES "-B build/quick-libtorch-2.15.9 -DCOX_TORCH_ROOT=${asked}\n")
  message(SEND_ERROR "test --libtorch 2.15.9: expected a build folder of its own and ${asked}, found: ${text}")
endif()

# Programs that no test runs with these words still start.
foreach(program limits kills mixed)
  execute_process(COMMAND python3 -B "${SOURCE}/tests/e2e/${program}.py" --help
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    message(SEND_ERROR "tests/e2e/${program}.py --help: expected exit code 0, found ${code}: ${text}")
  endif()
endforeach()
