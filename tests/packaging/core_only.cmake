# COX_CORE_ONLY needs a compiler and nothing else: configures it with its tests, and builds the core library.
# Variables: SOURCE, WORK, GENERATOR, CCACHE.
set(launcher)
if(CCACHE)
  set(launcher "-DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE}")
endif()
foreach(command
    "${CMAKE_COMMAND};-S;${SOURCE};-B;${WORK};-G;${GENERATOR};-DCOX_CORE_ONLY=ON;-DCOX_UNITY=ON;-DCMAKE_BUILD_TYPE=None;${launcher}"
    "${CMAKE_COMMAND};--build;${WORK};--target;coxswain_core")
  execute_process(COMMAND ${command} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "COX_CORE_ONLY: expected success of '${command}', found ${code}:\n${output}${text}")
  endif()
endforeach()
