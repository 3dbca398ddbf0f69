// NCCL's transport on the stand-in CUDA runtime: the host cannot touch device memory, unordered
// accesses are reported, and waits are counted. Masks and buckets never make the host wait, and
// planted faults are found. Ranks are threads that share one device.
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/runtime/mask_broadcast.h"
#include "coordinator/transport/nccl/device_exchange.h"
#include "tests/support/cuda/stand_in.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using runtime::MaskBroadcast;
using transport::Communicator;
using transport::DeviceExchange;
using transport::LoopbackWorld;
using transport::NcclGroup;
using transport::NcclLibrary;
using transport::Progress;
using transport::StagingBuffer;

Status as_status(cudaError_t error) {
  return error == cudaSuccess ? ok_status() : unavailable(cudaGetErrorString(error));
}

// A lane on CUDA's own functions. `training` represents the current stream.
class CudaLane final : public transport::DeviceLane {
 public:
  explicit CudaLane(cudaStream_t training = nullptr) : training_(training) {
    REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
  }
  ~CudaLane() override {
    cudaStreamSynchronize(stream_);
    for (auto& [mark, event] : events_) cudaEventDestroy(event);
    for (const StagingBuffer& buffer : buffers_) {
      cudaFree(buffer.device);
      cudaFreeHost(buffer.host.data());
    }
    cudaStreamDestroy(stream_);
  }

  Status select_device() override { return as_status(cudaSetDevice(0)); }
  void* stream() const override { return stream_; }
  Result<StagingBuffer> staging(std::size_t bytes) override {
    void* host = nullptr;
    StagingBuffer buffer;
    Status made = as_status(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
    if (made.ok()) made = as_status(cudaMalloc(&buffer.device, bytes));
    if (!made.ok()) return made;
    std::memset(host, 0, bytes);
    buffer.host = {static_cast<std::byte*>(host), bytes};
    buffers_.push_back(buffer);
    return buffer;
  }
  Status upload(const StagingBuffer& buffer, std::size_t bytes) override {
    return as_status(
        cudaMemcpyAsync(buffer.device, buffer.host.data(), bytes, cudaMemcpyHostToDevice, stream_));
  }
  Status download(const StagingBuffer& buffer, std::size_t bytes) override {
    return as_status(
        cudaMemcpyAsync(buffer.host.data(), buffer.device, bytes, cudaMemcpyDeviceToHost, stream_));
  }
  Status mark(Mark mark) override { return as_status(cudaEventRecord(event(mark), stream_)); }
  Result<Progress> passed(Mark mark) override {
    const cudaError_t error = cudaEventQuery(event(mark));
    if (error == cudaErrorNotReady) return Progress::pending;
    if (error != cudaSuccess) return as_status(error);
    return Progress::done;
  }
  Status mark_current(Mark mark) override {
    return as_status(cudaEventRecord(event(mark), training_));
  }
  Status follow(Mark mark) override {
    return as_status(cudaStreamWaitEvent(stream_, event(mark), 0));
  }
  Status hold_current_until(Mark mark) override {
    return as_status(cudaStreamWaitEvent(training_, event(mark), 0));
  }

 private:
  cudaEvent_t event(Mark mark) {
    cudaEvent_t& made = events_[mark];
    if (made == nullptr) cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    return made;
  }

  cudaStream_t training_;
  cudaStream_t stream_ = nullptr;
  std::map<Mark, cudaEvent_t> events_;
  std::vector<StagingBuffer> buffers_;
};

std::vector<std::string> on_ranks(std::int32_t ranks,
                                  const std::function<std::string(Communicator&)>& run) {
  const LoopbackWorld world(ranks);
  auto results = transport::on_every_rank(world, ranks, run);
  CHECK(world.verify().ok());
  return results;
}

// Returns how often the host waited for the device, read while no rank makes or destroys objects.
std::uint64_t waits_of_all(Communicator& c) {
  REQUIRE(transport::all_gather(c, 0, transport::patient()).ok());
  const std::uint64_t waits = cox_standin_synchronisations();
  REQUIRE(transport::all_gather(c, 0, transport::patient()).ok());
  return waits;
}

std::string send_masks(Communicator& c, int count) {
  MaskBroadcast::Setup setup;
  setup.wait = transport::patient();
  setup.make_lane = []() -> Result<std::unique_ptr<transport::DeviceLane>> {
    return std::unique_ptr<transport::DeviceLane>(std::make_unique<CudaLane>());
  };
  auto made = MaskBroadcast::create(c, setup);
  if (!made.ok()) return made.status().text();
  const std::uint64_t before = waits_of_all(c);
  for (int turn = 0; turn < count; ++turn) {
    const std::vector<std::byte> frame(40, static_cast<std::byte>(turn));
    const std::span<const std::byte> view(frame);
    (*made)->start(c.rank() == kRoot ? MaskBroadcast::Frames(&view, 1) : MaskBroadcast::Frames());
    transport::Waiter waiter(transport::patient());
    while ((*made)->poll() != MaskBroadcast::Arrival::frames) {
      if (!(*made)->status().ok()) return (*made)->status().text();
      if (Status s = waiter.pause(); !s.ok()) return s.text();
    }
    if (!std::ranges::equal((*made)->frames()[0], frame)) return concat("mask ", turn);
  }
  return waits_of_all(c) == before ? "" : "the host waited for the device";
}

// Launches a kernel on the training stream that writes or reads one number at each element.
void kernel(cudaStream_t stream, float* device, std::size_t count, float* write, float* read) {
  cox_standin_launch(stream);
  cox_standin_note(device, count * sizeof(float), write != nullptr, stream, "test kernel");
  auto* shadow = static_cast<float*>(cox_standin_shadow(device));
  if (write != nullptr) std::fill_n(shadow, count, *write);
  if (read != nullptr) *read = shadow[count - 1];
}

enum class Order { kept, broken };

// Averages two buckets in two steps. Returns an error, empty on success.
std::string average(Communicator& c, Order order) {
  constexpr std::size_t kCount = 30'000;
  cudaStream_t training = nullptr;
  cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking);
  auto lane = std::make_shared<CudaLane>(training);
  transport::NcclGroupOptions options;
  options.wait = transport::patient();
  auto group =
      NcclGroup::create(c, NcclLibrary::open(), options, [&] { return lane->select_device(); });
  if (!group.ok()) return group.status().text();
  std::vector<transport::DeviceBucket> buckets;
  for (int b = 0; b < 2; ++b) {
    buckets.push_back(
        {lane->staging(kCount * sizeof(float))->device, kCount, transport::nccl::Type::float32});
  }
  auto made = DeviceExchange::create(c, std::move(*group), lane, buckets, {transport::patient()});
  if (!made.ok()) return made.status().text();
  const std::uint64_t before = waits_of_all(c);
  for (int step = 0; step < 2; ++step) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      auto gradient = static_cast<float>(c.rank().value() + 1 + step);
      kernel(training, static_cast<float*>(buckets[b].address), kCount, &gradient, nullptr);
      if (Status s = (*made)->start(b); !s.ok()) return s.text();
    }
    if (order == Order::broken) {
      float early = 0;
      kernel(training, static_cast<float*>(buckets[0].address), kCount, nullptr, &early);
    }
    if (Status s = (*made)->wait_all({}); !s.ok()) return s.text();
    if (Status s = (*made)->wait_for_device([] { return ok_status(); }); !s.ok()) return s.text();
    for (const transport::DeviceBucket& bucket : buckets) {
      float sum = 0;
      kernel(training, static_cast<float*>(bucket.address), kCount, nullptr, &sum);
      const auto expected = static_cast<float>(3 + 2 * step);
      if (sum != expected) return concat("step ", step, ": expected ", expected, ", found ", sum);
    }
  }
  return waits_of_all(c) == before ? "" : "the host waited for the device";
}

TEST_SUITE("nccl on the stand-in runtime") {
  TEST_CASE("masks arrive in both memories and the host waits for nothing") {
    for (const std::int32_t ranks : {2, 4}) {
      for (const std::string& wrong :
           on_ranks(ranks, [](Communicator& c) { return send_masks(c, 200); }))
        CHECK(wrong == "");
    }
    CHECK(cox_standin_take_races() == 0);
  }

  TEST_CASE("sums are behind the kernels before them and before those behind them") {
    for (const std::string& wrong :
         on_ranks(2, [](Communicator& c) { return average(c, Order::kept); }))
      CHECK(wrong == "");
    CHECK(cox_standin_take_races() == 0);
  }

  TEST_CASE("a kernel that reads a bucket while it is summed is a race") {
    on_ranks(2, [](Communicator& c) { return average(c, Order::broken); });
    CHECK(cox_standin_take_races() > 0);
  }
}

}  // namespace
}  // namespace cox::test
