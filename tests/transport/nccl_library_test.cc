// Errors for an NCCL that is missing, old, or without a driver. Tests the real library if the
// machine has one.
#include "tests/transport/nccl_trial.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

TEST_SUITE("nccl library") {
  TEST_CASE("a library that is not there is a reason") {
    const auto library = NcclLibrary::open("libno-such-nccl.so.2");
    CHECK(library.status().code() == StatusCode::not_found);
    CHECK(library.status().message().find("NCCL: expected a library libno-such-nccl.so.2, found "
                                          "none (") == 0);
  }

  TEST_CASE("a library without a function names the first that it lacks") {
    const auto library = NcclLibrary::open("libc.so.6");
    CHECK(library.status().code() == StatusCode::not_found);
    CHECK(library.status().message() ==
          "NCCL: expected ncclGetVersion() in libc.so.6, found a library without it");
  }

  TEST_CASE("an old release is named, and what is needed") {
    const Script old("version=21605");
    const auto library = NcclLibrary::open(COX_FAKE_NCCL_LIBRARY);
    CHECK(library.status().code() == StatusCode::failed_precondition);
    CHECK(library.status().message().find("NCCL: expected 2.17.0 or newer, found 2.16.5") == 0);
    CHECK(nccl_version_text(2708) == "2.7.8");
  }

  TEST_CASE("the fake is found with all its functions") {
    const auto library = NcclLibrary::open(COX_FAKE_NCCL_LIBRARY);
    REQUIRE_MESSAGE(library.ok(), library.status().text());
    CHECK(library->version_text() == "2.28.9");
  }

  TEST_CASE("the real library without a driver refuses the start on all ranks, in its own words") {
    const auto library = NcclLibrary::open(COX_REAL_NCCL_LIBRARY);
    if (!library.ok()) {
      MESSAGE("left out: " << library.status().message());
      return;
    }
    MESSAGE("NCCL " << library->version_text());
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      const auto group = NcclGroup::create(c, library, test_options());
      return group.ok() ? "a group" : group.status().text();
    });
    if (results[0] == "a group") {
      MESSAGE("left out: this machine has a driver");
      return;
    }
    CHECK(results[0].find("unavailable: rank 0: NCCL: start: unhandled cuda error") == 0);
    CHECK(results[1] == results[0]);
    MESSAGE(results[0]);
  }
}

}  // namespace
}  // namespace cox::transport
