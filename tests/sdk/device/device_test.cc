// The parts of the device layer on the stand-ins for CUDA, which report every unordered access and
// every access by the host.
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "sdk/src/device/phase_events.h"
#include "sdk/src/device/stream_lane.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/device/transfer.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/memory/tensor_memory.h"
#include "stand_in_counts.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);

template <class Work>
void until(const Work& is_over) {
  for (int polls = 0; polls < 1000 && !is_over(); ++polls) {
  }
  CHECK(is_over());
}

}  // namespace

TEST_CASE("a session picks the device, says so, and makes it current") {
  const auto session = solo_session({"--cox.run.device=cuda"});
  CHECK(session.device() == kDevice);
  CHECK(torch::ones({1}, at::kCUDA).device() == kDevice);
  CHECK(solo_session({"--cox.run.device=cpu"}).device() == c10::Device(at::kCPU));
  CHECK(solo_session().device() == kDevice);
}

TEST_CASE("a lane carries bytes to the device and back, on a stream of its own, without a wait") {
  auto made = StreamLane::make(kDevice);
  REQUIRE(made.ok());
  transport::DeviceLane& lane = **made;
  CHECK(lane.select_device().ok());
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  CHECK(lane.stream() != guard.getStreamNativeHandle(guard.getStream(kDevice)));
  const auto buffer = lane.staging(256);
  REQUIRE(buffer.ok());
  const std::uint64_t before = synchronisations();
  CHECK(*lane.passed(3) == transport::Progress::done);  // never set
  std::memset(buffer->host.data(), 7, 256);
  CHECK(lane.upload(*buffer, 256).ok());
  CHECK(lane.mark(0).ok());
  until([&] { return *lane.passed(0) == transport::Progress::done; });
  std::memset(buffer->host.data(), 0, 256);
  CHECK(lane.download(*buffer, 128).ok());
  CHECK(lane.mark(0).ok());
  until([&] { return *lane.passed(0) == transport::Progress::done; });
  CHECK(buffer->host[127] == std::byte{7});
  CHECK(buffer->host[128] == std::byte{0});
  CHECK(synchronisations() == before);
  CHECK_FALSE(lane.upload(*buffer, 512).ok());
  CHECK_FALSE(lane.upload({buffer->host, nullptr}, 1).ok());
}

TEST_CASE("a lane and the training stream wait for each other on the device") {
  auto lane = *StreamLane::make(kDevice);
  const auto buffer = lane->staging(1024);
  REQUIRE(buffer.ok());
  at::Tensor ours =
      at::from_blob(buffer->device, {1024}, at::TensorOptions(kDevice).dtype(at::kByte));
  const std::uint64_t before = synchronisations();
  CHECK(lane->upload(*buffer, 1024).ok());
  CHECK(lane->mark(0).ok());
  CHECK(lane->hold_current_until(0).ok());
  ours.fill_(5);  // by the training stream, after the upload
  CHECK(lane->mark_current(2).ok());
  CHECK(lane->follow(2).ok());
  CHECK(lane->download(*buffer, 1024).ok());
  CHECK(lane->mark(1).ok());
  CHECK(synchronisations() == before);
  until([&] { return *lane->passed(1) == transport::Progress::done; });
  CHECK(buffer->host[1023] == std::byte{5});
}

TEST_CASE("a lane of the CPU is refused") {
  CHECK_FALSE(StreamLane::make(c10::Device(at::kCPU)).ok());
}

TEST_CASE("phases are timed by events, and a step's times come when the device has passed it") {
  PhaseEvents events(kDevice);
  const std::uint64_t before = synchronisations();
  std::optional<PhaseEvents::Times> times;
  at::Tensor work = torch::ones({1 << 16}, kDevice);
  const std::uint64_t after_ones = synchronisations();
  for (int step = 0; step < 6; ++step) {
    events.begin_step();
    events.change(Phase::forward);
    for (int i = 0; i < 20; ++i) work.add_(1);
    events.change(Phase::optimizer);
    work.mul_(1);
    events.change(Phase::other);
    events.end_step({.wall_seconds = 1e-9, .waiting_seconds = 5, .is_waiting_known = true});
    if (auto taken = events.take()) times = taken;
  }
  CHECK(synchronisations() == after_ones);
  CHECK(after_ones >= before);
  REQUIRE(times);
  const auto& seconds = times->phase_seconds;
  CHECK(seconds[static_cast<std::size_t>(Phase::forward)] > 0);
  CHECK(seconds[static_cast<std::size_t>(Phase::backward)] == 0);
  double sum = 0;
  for (const double each : seconds) sum += each;
  CHECK(sum == doctest::Approx(times->host.wall_seconds));
  CHECK(times->host.waiting_seconds == 0);  // without communication
}

TEST_CASE("steps that the device ends together are told one by one, in their order") {
  PhaseEvents events(kDevice);
  for (const double wall : {10.0, 20.0, 30.0}) {
    events.begin_step();
    events.change(Phase::forward);
    events.end_step({.wall_seconds = wall});
  }
  std::vector<double> told;
  until([&] {
    if (const auto times = events.take()) told.push_back(times->host.wall_seconds);
    return told.size() == 3;
  });
  CHECK(told == std::vector<double>{10, 20, 30});
  CHECK_FALSE(events.take());
}

TEST_CASE("a step that was spoiled has no times, and neither has one that was not ended") {
  PhaseEvents events(kDevice);
  events.begin_step();
  events.spoil();
  events.end_step({});
  CHECK_FALSE(events.take());
  events.begin_step();
  CHECK_FALSE(events.take());
}

TEST_CASE("a step one of whose phases runs on another stream has times when that one is over, too" *
          doctest::skip(!on_stand_in())) {  // work with a scripted end
  PhaseEvents events(kDevice);
  const c10::impl::VirtualGuardImpl devices(kDevice.type());
  const c10::Stream side = devices.getStreamFromGlobalPool(kDevice, false);
  cox_standin_work* work =
      of_stand_in<cox_standin_work*(void*)>("cox_standin_begin")(side.native_handle());
  events.begin_step();
  {
    const c10::StreamGuard guard(side);
    events.change(Phase::communication);
  }
  events.change(Phase::other);
  events.end_step({});
  for (int polls = 0; polls < 20; ++polls) CHECK_FALSE(events.take());
  of_stand_in<void(cox_standin_work*)>("cox_standin_finish")(work);
  std::optional<PhaseEvents::Times> times;
  until([&] { return times.has_value() || (times = events.take()).has_value(); });
  for (const double seconds : times->phase_seconds) CHECK(seconds >= 0);
}

TEST_CASE("the bytes of tensors on a device are those of its allocator") {
  const TensorMemory memory(kDevice);
  CHECK(memory.is_counted());
  const MemoryCount before = memory.count();
  memory.reset_peak();
  {
    const at::Tensor large = torch::empty({1 << 20}, at::TensorOptions(kDevice).dtype(at::kByte));
    CHECK(memory.count().live_bytes - before.live_bytes == 1 << 20);
  }
  CHECK(memory.count().live_bytes == before.live_bytes);
  CHECK(memory.count().peak_bytes - before.live_bytes == 1 << 20);
  const MemoryCount reserved = memory.reserved();
  CHECK(reserved.live_bytes > memory.count().live_bytes);  // freed memory stays reserved
  CHECK(reserved.peak_bytes >= memory.count().peak_bytes);
  CHECK(memory.free_bytes().value_or(0) > 0);
  MemoryProbe probe;
  probe.count_on(kDevice);
  probe.look();
  CHECK(probe.reading().used_bytes == static_cast<std::uint64_t>(memory.count().live_bytes));
  CHECK(probe.reading().reserved_bytes == static_cast<std::uint64_t>(reserved.live_bytes));
  CHECK(probe.reading().limit_bytes == probe.reading().reserved_bytes + *memory.free_bytes());
}

TEST_CASE("tensors are sent without a wait, and what is there already stays") {
  const at::Tensor here = torch::arange(100);
  const std::uint64_t before = synchronisations();
  const at::Tensor there = sent_to(here, kDevice);
  CHECK(synchronisations() == before);
  CHECK(there.device() == kDevice);
  CHECK(there.cpu().equal(here));
  CHECK(sent_to(there, kDevice).is_same(there));
  CHECK(sent_to(here, at::kCPU).is_same(here));
  CHECK_FALSE(sent_to(at::Tensor(), kDevice).defined());
}

TEST_CASE("so are tensors with gaps or overlaps, pinned or not, as a batch cut in time is") {
  const at::Tensor whole = torch::arange(64).reshape({4, 16});
  for (const at::Tensor& here : {whole.narrow(1, 0, 5), whole.pin_memory().narrow(1, 0, 5),
                                 whole.t(), whole.narrow(0, 0, 1).expand({3, 16})}) {
    const std::uint64_t before = synchronisations();
    const at::Tensor there = sent_to(here, kDevice);
    CHECK(synchronisations() == before);
    CHECK(there.cpu().equal(here));
  }
}

TEST_CASE("which tensors are finite is known without a wait") {
  const at::Tensor large = torch::full({3}, 1e300, at::kDouble).to(kDevice);
  const at::Tensor bad = torch::tensor({1.0f, NAN}).to(kDevice);
  const at::Tensor narrow = torch::tensor({1.0f, -INFINITY}).to(kDevice, at::kBFloat16);
  const std::vector<at::Tensor> tensors = {large,
                                           bad,
                                           at::Tensor(),
                                           torch::tensor({INFINITY, NAN, 0.0f}),
                                           narrow,
                                           torch::empty({0}).to(kDevice),
                                           torch::ones({2}).to(kDevice)};
  const std::vector<std::int64_t> expected = {0, 1, 0, 2, 1, 0, 0};
  const std::uint64_t before = synchronisations();
  FiniteLook look(tensors);
  until([&] { return look.finish(); });
  CHECK(synchronisations() == before);
  CHECK(look.nonfinite() == expected);
  CHECK(look.is_bad());
  FiniteLook again(tensors);
  again.wait();
  CHECK(again.nonfinite() == expected);
  CHECK_FALSE(FiniteLook(std::vector<at::Tensor>{torch::ones({2}), at::Tensor()}).is_bad());
}

TEST_CASE("figures of scans come from the device without a wait") {
  const at::Tensor tensor = torch::tensor({1.0f, -8.0f, INFINITY, NAN}).to(kDevice);
  std::vector<PendingScan> scans(3);
  const std::uint64_t before = synchronisations();
  scans[0] = start_scan(tensor, ScanKind::small);
  scans[1] = start_scan(tensor, ScanKind::extent);
  scans[2] = start_scan(tensor.narrow(0, 0, 2).to(at::kBFloat16), ScanKind::extent);
  PendingScan* const all[] = {&scans[0], &scans[1], &scans[2]};
  PendingRead read(all);
  CHECK(synchronisations() == before);
  until([&] { return read.finish(); });
  CHECK(synchronisations() == before);
  CHECK(scans[0].scan.values == 4);
  CHECK(scans[0].scan.nonfinite == 2);
  CHECK(scans[0].scan.amax == 8);
  CHECK(scans[1].scan.values == 4);
  CHECK(scans[1].scan.nonfinite == 1);  // the cheap scan detects values without counting them
  CHECK(scans[1].scan.amax == 0);
  CHECK(scans[2].scan.nonfinite == 0);
  CHECK(scans[2].scan.amax == 8);
}

TEST_CASE("figures of a device are the host's, in few kernels, in every type") {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor values =
      torch::tensor({1.0, -8.0, infinity, std::nan(""), 0.0, 0.0, 1e-6, -infinity}).repeat({40});
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const ScanKind kind : {ScanKind::extent, ScanKind::small}) {
      CAPTURE(type);
      const at::Tensor here = values.to(type);
      const at::Tensor there = here.to(kDevice);
      const std::uint64_t before = stand_in_counters().kernels;
      PendingScan pending = start_scan(there, kind);
      const std::uint64_t kernels = stand_in_counters().kernels - before;
      CHECK(kernels <= (kind == ScanKind::extent ? 3 : 18));
      PendingScan* const one = &pending;
      read_scans({&one, 1});
      const TensorScan expected = scan(here, kind);
      CHECK(pending.scan.values == expected.values);
      CHECK((pending.scan.nonfinite > 0) == (expected.nonfinite > 0));
      if (kind == ScanKind::extent) continue;
      CHECK(pending.scan.nonfinite == expected.nonfinite);
      CHECK(pending.scan.amax == expected.amax);
      CHECK(pending.scan.tiny == expected.tiny);
      CHECK(pending.scan.zeros == expected.zeros);
    }
  }
}
