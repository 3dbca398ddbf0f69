// A program that lets Coxswain start and end MPI. Exits with 0 if both work and the world adds up.
#include <cstdio>
#include <memory>
#include <vector>

#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"

namespace {

using namespace cox;
using namespace cox::transport;

Status add_up(const MpiRuntime& runtime) {
  Result<std::unique_ptr<Communicator>> world = runtime.world({});
  if (!world.ok()) return world.status();
  Communicator& c = **world;
  std::vector<std::uint64_t> sum = {static_cast<std::uint64_t>(c.rank().value())};
  Status done = finish(c, c.start_all_reduce(std::as_writable_bytes(std::span(sum)), sum_u64()),
                       with_timeout(wait_policy(c.ranks_on_node(), usable_cores()),
                                    std::chrono::seconds(20), "the sum"));
  if (!done.ok()) return done;
  const auto ranks = static_cast<std::uint64_t>(c.size());
  return sum[0] == ranks * (ranks - 1) / 2 ? ok_status() : internal_error("wrong sum");
}

}  // namespace

int main(int argc, char** argv) {
  Result<MpiRuntime> runtime = MpiRuntime::start(&argc, &argv);
  Status status = runtime.ok() ? add_up(*runtime) : runtime.status();
  if (status.ok() && !runtime->initialized_here()) status = internal_error("MPI was there before");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.text().c_str());
  return status.ok() ? 0 : 1;
}
