# scripts/demo refuses what cannot work before it installs or builds anything.
function(expect_refusal expected)
  execute_process(COMMAND "${DEMO}" ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output
    ERROR_VARIABLE text)
  if(NOT code EQUAL 2 OR NOT text MATCHES "^demo: error: ${expected}" OR output)
    message(SEND_ERROR "${ARGN}: expected exit code 2 and '${expected}', found ${code}: ${output}${text}")
  endif()
endfunction()

expect_refusal("expected a number of ranks from 1 to 9999, found '0'" --ranks 0)
expect_refusal("expected a number of ranks from 1 to 9999, found 'two'" --ranks=two)
expect_refusal("expected a value after --ranks" --ranks)
expect_refusal("expected a readable text file, found '/nonexistent.txt'" --text /nonexistent.txt)
