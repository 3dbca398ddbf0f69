# The installed package: find_package(coxswain CONFIG), headers under include/coxswain.
# `#include <coxswain/session.h>` and `#include "coordinator/core/plan.h"` both work for a consumer.
# The second kind lives in a folder of its own: were include/coxswain itself on the include path, a
# header such as coxswain/error.h would stand in for the system's <error.h>.
include(CMakePackageConfigHelpers)

set(_cox_package "${CMAKE_INSTALL_LIBDIR}/cmake/coxswain")
set(_cox_headers "${CMAKE_INSTALL_INCLUDEDIR}/coxswain")

if(EXISTS "${PROJECT_SOURCE_DIR}/sdk/include/coxswain" AND COX_WITH_TORCH)
  install(DIRECTORY sdk/include/coxswain/ DESTINATION "${_cox_headers}" FILES_MATCHING PATTERN "*.h")
endif()
foreach(folder core estimates decide policies planner io wire transport runtime)
  if(TARGET coxswain_${folder} OR folder MATCHES "estimates|decide")  # these two are parts of core
    install(DIRECTORY coordinator/${folder}/ DESTINATION "${_cox_headers}/tree/coordinator/${folder}"
      FILES_MATCHING PATTERN "*.h")
  endif()
endforeach()
install(DIRECTORY coordinator/testing/ DESTINATION "${_cox_headers}/tree-testing/coordinator/testing"
  FILES_MATCHING PATTERN "*.h")
if(TARGET coxswain_metrics)
  install(DIRECTORY metrics/ DESTINATION "${_cox_headers}/tree/metrics" FILES_MATCHING PATTERN "*.h")
endif()

configure_package_config_file(cmake/coxswainConfig.cmake.in coxswainConfig.cmake
  INSTALL_DESTINATION "${_cox_package}" NO_SET_AND_CHECK_MACRO)
# Programs that asked for 0.2 build with 0.3 (docs/versions.md).
write_basic_package_version_file(coxswainConfigVersion.cmake COMPATIBILITY AnyNewerVersion)
install(EXPORT coxswainTargets NAMESPACE coxswain:: DESTINATION "${_cox_package}")
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/coxswainConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/coxswainConfigVersion.cmake"
  cmake/FindMPICH.cmake cmake/FindLibTorch.cmake cmake/libtorch-version
  DESTINATION "${_cox_package}")
