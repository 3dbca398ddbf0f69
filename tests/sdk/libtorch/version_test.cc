#include "sdk/src/libtorch/version.h"

#include <torch/headeronly/version.h>

#include <string>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

TEST_SUITE("LibTorch's version") {
  TEST_CASE("is read from what the library tells of itself") {
    CHECK(version_in("Build settings: USE_MPI=OFF, TORCH_VERSION=2.13.1, USE_CUDA=ON") == "2.13.1");
    CHECK(version_in("TORCH_VERSION=2.9.0") == "2.9.0");
    CHECK(version_in("nothing of the kind").empty());
    CHECK(version_in("").empty());
    CHECK(loaded_version() == TORCH_VERSION);
    CHECK(check_loaded_version().ok());
  }

  TEST_CASE("must be the one of the build, but for its last number") {
    CHECK(check_version("2.11.0", "2.11.0").ok());
    CHECK(check_version("2.11.0", "2.11.1").ok());
    CHECK(check_version("2.11.0", "").ok());
    for (const char* other : {"2.12.0", "2.1.0", "3.11.0", "2"}) {
      const Status refused = check_version("2.11.0", other);
      CHECK(refused.code() == StatusCode::failed_precondition);
      CHECK(refused.message().find(std::string("found ") + other) != std::string::npos);
    }
  }
}
