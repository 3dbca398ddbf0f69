# cmake -DCOMPILE="compiler;flag;..." -DSOURCE=refused.cc -P refused.cmake
# Passes when the file compiles with -DACCEPTED, does not without, and then every sentence behind an
# "// expect: " in it is among the compiler's messages.
execute_process(COMMAND ${COMPILE} -DACCEPTED ${SOURCE} RESULT_VARIABLE result ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "Expected the accepted calls to compile:\n${output}")
endif()

execute_process(COMMAND ${COMPILE} ${SOURCE} RESULT_VARIABLE result ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "Expected the refused calls not to compile, but all of ${SOURCE} did")
endif()
file(STRINGS ${SOURCE} sentences REGEX "^ *// expect: ")
list(LENGTH sentences count)
foreach(sentence IN LISTS sentences)
  string(REGEX REPLACE "^ *// expect: " "" sentence "${sentence}")
  string(FIND "${output}" "${sentence}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "Expected an error that says \"${sentence}\", found:\n${output}")
  endif()
endforeach()
message(STATUS "${count} calls refused")
