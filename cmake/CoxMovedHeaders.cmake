# Makes one-line headers under the old paths of public headers that moved, so that programs written for an older
# version keep compiling. cmake/moved-headers has a line for each: the old path, then the new one. Sources of this
# project use the new paths; tests/layering proves it.
file(STRINGS "${PROJECT_SOURCE_DIR}/cmake/moved-headers" _cox_moved REGEX "^[a-z]")
foreach(_cox_line IN LISTS _cox_moved)
  string(REGEX MATCH "^([^ ]+) ([^ ]+)$" _cox_line "${_cox_line}")
  file(CONFIGURE OUTPUT "moved/${CMAKE_MATCH_1}" CONTENT "#include \"${CMAKE_MATCH_2}\"\n" @ONLY)
endforeach()
if(NOT PROJECT_IS_TOP_LEVEL)
  target_include_directories(coxswain_core INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/moved>)
endif()
if(COX_INSTALL)
  install(DIRECTORY "${PROJECT_BINARY_DIR}/moved/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/coxswain/tree"
    FILES_MATCHING PATTERN "*.h")
endif()
