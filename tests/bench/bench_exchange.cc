// Times one sum of N MiB of fp32 through a BucketExchange, in shared memory and by messages, beside
// MPI_Allreduce and a polled MPI_Iallreduce of the same bytes. Those two promise no order of
// summation. All ways take turns within one run; prints medians of the slowest rank.
//
//   mpiexec -n 2 bench_exchange [repeats [chunk KiB]]
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "coordinator/transport/exchange/bucket_exchange.h"
#include "coordinator/transport/mpi/runtime.h"

namespace {

using namespace cox;
using namespace cox::transport;

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Way {
  const char* name;
  std::function<bool()> once;
  std::vector<double> seconds;
};

std::unique_ptr<BucketExchange> exchange_of(Communicator& world, SharedMemory memory,
                                            std::size_t bytes, std::size_t chunk_bytes) {
  ExchangeOptions options;
  options.chunk_bytes = chunk_bytes;
  options.shared_memory = memory;
  options.wait = wait_policy(world.ranks_on_node(), usable_cores());
  auto made = BucketExchange::create(world, {{bytes, sum_f32()}}, options);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().text().c_str());
    return nullptr;
  }
  std::memset((*made)->buffer(0).data(), 0, bytes);
  return std::move(*made);
}

bool exchanged(BucketExchange& exchange) {
  return exchange.start(0).ok() && exchange.wait_all({}).ok();
}

bool all_reduced(std::vector<float>& values) {
  return MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT,
                       MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS;
}

bool polled(std::vector<float>& values) {
  MPI_Request request = MPI_REQUEST_NULL;
  int done = 0;
  int code = MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT,
                            MPI_SUM, MPI_COMM_WORLD, &request);
  while (code == MPI_SUCCESS && done == 0) code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  return code == MPI_SUCCESS;
}

double slowest(double mine) {
  double all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool measure(std::vector<Way>& ways, int repeats) {
  for (int i = -2; i < repeats; ++i) {
    for (Way& way : ways) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double begin = MPI_Wtime();
      if (!way.once()) return false;
      const double seconds = slowest(MPI_Wtime() - begin);
      if (i >= 0) way.seconds.push_back(seconds);
    }
  }
  return true;
}

bool run(Communicator& world, std::size_t bytes, int repeats, std::size_t chunk_bytes) {
  const auto shared = exchange_of(world, SharedMemory::use, bytes, chunk_bytes);
  const auto messages = exchange_of(world, SharedMemory::avoid, bytes, chunk_bytes);
  if (shared == nullptr || messages == nullptr) return false;
  std::vector<float> values(bytes / sizeof(float), 0.0f);
  std::vector<Way> ways = {{"exchange, shared memory", [&] { return exchanged(*shared); }, {}},
                           {"exchange, messages", [&] { return exchanged(*messages); }, {}},
                           {"MPI_Allreduce", [&] { return all_reduced(values); }, {}},
                           {"MPI_Iallreduce, polled", [&] { return polled(values); }, {}}};
  if (!measure(ways, repeats)) return false;
  for (const Way& way : ways) {
    if (world.rank() != RankId(0)) continue;
    std::printf("%d ranks  %8.3f MiB  %-24s %10.3f ms  fastest %10.3f ms\n", world.size(),
                static_cast<double>(bytes) / kMiB, way.name, median(way.seconds) * 1e3,
                *std::min_element(way.seconds.begin(), way.seconds.end()) * 1e3);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Result<MpiRuntime> runtime = MpiRuntime::start(&argc, &argv);
  if (!runtime.ok()) return 1;
  Result<std::unique_ptr<Communicator>> world = runtime->world({});
  if (!world.ok()) return 1;
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 30;
  const int chunk_kib = argc > 2 ? std::max(0, std::atoi(argv[2])) : 0;
  const std::size_t chunk_bytes = static_cast<std::size_t>(chunk_kib) << 10;
  for (const std::size_t bytes : {std::size_t{4096}, kMiB, 4 * kMiB, 25 * kMiB}) {
    if (!run(**world, bytes, repeats, chunk_bytes)) return 1;
  }
  return 0;
}
