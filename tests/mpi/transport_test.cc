// The transport over real MPI, with as many ranks as mpiexec started. The main function has called
// MPI_Init, so this also tests a program with its own MPI.
#include <string>

#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"
#include "tests/transport/conformance.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

// Returns a new world, from the program's MPI.
std::unique_ptr<Communicator> world(const MpiOptions& options = {}) {
  Result<MpiRuntime> runtime = MpiRuntime::start(nullptr, nullptr);
  REQUIRE(runtime.ok());
  CHECK_FALSE(runtime->initialized_here());
  Result<std::unique_ptr<Communicator>> made = runtime->world(options);
  REQUIRE_MESSAGE(made.ok(), made.status().text());
  return std::move(*made);
}

void conforms(Communicator& communicator) {
  for (const ConformanceCase& item : conformance_cases()) {
    const std::string text = item.run(communicator);
    CHECK_MESSAGE(text.empty(),
                  item.name << ", rank " << communicator.rank().value() << ": " << text);
  }
}

TEST_SUITE_BEGIN("mpi transport");

TEST_CASE("MPI does what every transport must do") {
  const auto c = world();
  CHECK(c->kind() == std::string("mpi"));
  CHECK(c->ranks_on_node() == c->size());
  conforms(*c);
}

TEST_CASE("MPI does what every transport must do when reductions take many small steps") {
  MpiOptions options;
  options.gather_limit_bytes = 64;
  options.scratch_limit_bytes = 16'000;
  conforms(*world(options));
}

TEST_CASE("MPI does what every transport must do on pretended nodes") {
  MpiOptions options;
  options.ranks_per_node = 1;
  const auto c = world(options);
  CHECK(c->ranks_on_node() == 1);
  CHECK(c->shared_segment(64).ok() == (c->size() == 1));
  conforms(*c);
}

TEST_CASE("a shared segment that does not fit is refused on every rank, with a reason") {
  MpiOptions options;
  options.shared_folder = "/nowhere";
  const auto c = world(options);
  const auto refused = c->shared_segment(4096);
  CHECK(refused.status().code() == StatusCode::resource_exhausted);
  CHECK(refused.status().message().find("/nowhere") != std::string::npos);
  CHECK(refused.status().message().find("COX_SHM_DIR") != std::string::npos);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
