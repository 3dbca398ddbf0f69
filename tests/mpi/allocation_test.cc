// The warm step path allocates nothing. Counts operator new, which excludes MPI's own memory.
#include <algorithm>
#include <array>
#include <vector>

#include "coordinator/transport/exchange/bucket_exchange.h"
#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"
#include "coordinator/transport/wait.h"
#include "tests/bench/allocation_count.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

using bench::AllocationCount;

struct Buffers {
  std::vector<std::byte> signal = std::vector<std::byte>(256);
  std::vector<std::byte> all;
  std::vector<float> large = std::vector<float>(50'000, 1.0f);
};

// Starts every kind of operation, several at once.
bool step(Communicator& c, Buffers& b) {
  const WaitPolicy policy = wait_policy(c.ranks_on_node(), 1);
  const Bytes large = std::as_writable_bytes(std::span(b.large));
  std::array<Result<Request>, 6> requests = {
      c.start_gather(b.signal, b.all, RankId(0)),
      c.start_all_reduce(large.first(40'000), sum_f32()),
      c.start_all_reduce(large.subspan(40'000), sum_f32()),
      c.start_reduce(Bytes(b.signal).first(128), sum_u64(), RankId(0)),
      c.start_broadcast(Bytes(b.signal).subspan(128), RankId(0)),
      c.start_all_reduce({}, sum_u64())};
  bool well = true;
  for (Result<Request>& request : requests) {
    well = well && request.ok() && wait(c, *request, policy).ok();
  }
  return well;
}

TEST_SUITE_BEGIN("allocation");

TEST_CASE("operations over MPI allocate nothing once they are warm") {
  Result<MpiRuntime> runtime = MpiRuntime::start(nullptr, nullptr);
  REQUIRE(runtime.ok());
  Result<std::unique_ptr<Communicator>> world = runtime->world({});
  REQUIRE(world.ok());
  Communicator& c = **world;
  Buffers buffers;
  buffers.all.resize(256 * static_cast<std::size_t>(c.size()));
  bool well = true;
  for (int i = 0; i < 20; ++i) well = well && step(c, buffers);
  const AllocationCount count;
  for (int i = 0; i < 20; ++i) well = well && step(c, buffers);
  const long spent = count.so_far();
  CHECK(well);
  CHECK(spent == 0);
}

bool exchange_round(BucketExchange& exchange) {
  bool well = true;
  for (std::size_t b = 0; b < exchange.buckets(); ++b) {
    well = well && exchange.start(b).ok() && exchange.advance().ok();
  }
  return well && exchange.wait_all({}).ok();
}

// Returns the most rounds in a row without an allocation. Timing decides which request an operation
// gets, and so which request's scratch memory grows. A few rounds may be too few to warm up, but
// each of the few requests grows only a few times.
int quiet_rounds(BucketExchange& exchange) {
  int quiet = 0;
  int most = 0;
  for (int i = 0; i < 400; ++i) {
    const AllocationCount count;
    if (!exchange_round(exchange)) return -1;
    quiet = count.so_far() == 0 ? quiet + 1 : 0;
    most = std::max(most, quiet);
  }
  return most;
}

TEST_CASE("exchanging buckets allocates nothing once it is warm, on every path") {
  Result<MpiRuntime> runtime = MpiRuntime::start(nullptr, nullptr);
  REQUIRE(runtime.ok());
  for (const std::int32_t per_node : {0, 1}) {
    MpiOptions nodes;
    nodes.ranks_per_node = per_node;
    Result<std::unique_ptr<Communicator>> world = runtime->world(nodes);
    REQUIRE(world.ok());
    for (const SharedMemory shared_memory : {SharedMemory::use, SharedMemory::avoid}) {
      ExchangeOptions options;
      options.shared_memory = shared_memory;
      auto exchange = BucketExchange::create(
          **world, {{4000, sum_f32()}, {0, sum_f32()}, {400'000, sum_f32()}}, options);
      REQUIRE(exchange.ok());
      CHECK(quiet_rounds(**exchange) >= 20);
    }
  }
}

TEST_CASE("posting and collecting a report and looking for a plan allocate nothing") {
  const BoardShape shape{1, 16};
  const SharedSegment memory = heap_segment(SignalBoard::bytes_needed(shape));
  SignalBoard signals = *SignalBoard::format(memory.bytes(), shape);
  const SharedSegment plan = heap_segment(MaskBoard::bytes_needed(256));
  MaskBoard masks = *MaskBoard::format(plan.bytes(), 256);
  MaskReader reader(masks);
  const std::array<std::byte, 100> frame{};
  const std::array<std::span<const std::byte>, 1> frames = {frame};
  const std::vector<BlockEvidence> evidence(16);
  CollectedSignals collected;
  long spent = 0;
  for (int i = 0; i < 10; ++i) {
    CHECK(masks.publish(frames).ok());
    const AllocationCount count;
    const bool posted = signals.post(0, RankSignal{}, evidence);
    const bool seen = reader.poll();
    signals.collect(collected);
    if (i > 1) spent += count.so_far();  // the first two rounds size alternating buffers
    CHECK(posted);
    CHECK(seen);
    CHECK(collected.signals.size() == 1);
  }
  CHECK(spent == 0);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
