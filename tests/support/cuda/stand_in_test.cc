// The stand-ins report each planted fault, and nothing else. Run with the stand-ins preloaded.
#include "tests/support/cuda/stand_in.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/TensorBody.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <doctest/doctest.h>

namespace {

const auto kDevice = at::TensorOptions().device(at::kCUDA, 0);

c10::impl::VirtualGuardImpl cuda() {
  return c10::impl::VirtualGuardImpl(at::kCUDA);
}
c10::Stream side_stream() {
  return cuda().getStreamFromGlobalPool(c10::Device(at::kCUDA, 0), false);
}
c10::Stream current_stream() {
  return cuda().getStream(c10::Device(at::kCUDA, 0));
}
void* handle(c10::Stream stream) {
  return cuda().getStreamNativeHandle(stream);
}

void order(c10::Stream first, c10::Stream then) {
  c10::Event event(at::kCUDA);
  event.record(first);
  event.block(then);
}

at::Tensor plus_one_on(c10::Stream stream, const at::Tensor& tensor) {
  const c10::StreamGuard guard(stream);
  return tensor + 1;
}

at::Tensor pinned(std::int64_t count) {
  return at::zeros({count}, at::TensorOptions().device(at::kCPU).pinned_memory(true));
}

// Runs one otherwise skipped case of this program in a process of its own.
int run_alone(const std::string& name) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  return std::system(("env -u CUDA_STANDIN_REPORT " + program + " --no-skip --test-case='" + name +
                      "' >/dev/null 2>&1")
                         .c_str());
}

}  // namespace

TEST_CASE("a read on another stream needs an event behind the write") {
  const at::Tensor a = at::ones({1024}, kDevice);
  const c10::Stream side = side_stream();
  plus_one_on(side, a);
  CHECK(cox_standin_take_races() == 1);
  order(current_stream(), side);
  plus_one_on(side, a);
  CHECK(cox_standin_take_races() == 0);
  order(side, current_stream());  // the allocator may reuse the memory in the next test
}

TEST_CASE("a write needs an event behind the reads of other streams") {
  at::Tensor a = at::ones({1024}, kDevice);
  const c10::Stream side = side_stream();
  order(current_stream(), side);
  plus_one_on(side, a);
  a.add_(1);
  CHECK(cox_standin_take_races() == 1);
  order(side, current_stream());
  a.add_(1);
  CHECK(cox_standin_take_races() == 0);
}

TEST_CASE("streams may write to different parts of one block, not to the same bytes") {
  at::Tensor a = at::zeros({1024}, kDevice);
  const c10::Stream side = side_stream();
  order(current_stream(), side);
  a.slice(0, 0, 512).add_(1);
  {
    const c10::StreamGuard guard(side);
    a.slice(0, 512).add_(1);
    CHECK(cox_standin_take_races() == 0);
    a.slice(0, 500, 600).add_(1);
  }
  CHECK(cox_standin_take_races() == 1);
  order(side, current_stream());
}

TEST_CASE(
    "memory that another stream still uses is not given out again after record_stream, and a race "
    "without") {
  for (const bool recorded : {true, false}) {
    CAPTURE(recorded);
    at::Tensor a = at::ones({1 << 20}, kDevice);
    const c10::Stream side = side_stream();
    order(current_stream(), side);
    plus_one_on(side, a);
    if (recorded) a.record_stream(side);
    const void* before = a.data_ptr();
    a = at::Tensor();
    a = at::zeros({1 << 20}, kDevice);
    CHECK((a.data_ptr() == before) == !recorded);
    CHECK(cox_standin_take_races() == (recorded ? 0 : 1));
  }
}

TEST_CASE(
    "the host may read a pinned buffer only after it has synchronised with the copy into it") {
  const at::Tensor a = at::full({1024}, 3.0, kDevice);
  const at::Tensor host = pinned(1024);
  host.copy_(a, true);
  CHECK(host[5].item<float>() == 3);
  CHECK(cox_standin_take_races() == 1);
  host.copy_(a, true);
  c10::Event event(at::kCUDA);
  event.record(current_stream());
  event.synchronize();
  CHECK(host[5].item<float>() == 3);
  CHECK(cox_standin_take_races() == 0);
}

TEST_CASE("the host may read, but not write, a pinned buffer that a stream still reads") {
  at::Tensor host = pinned(1024);
  at::Tensor a = at::empty({1024}, kDevice);
  a.copy_(host, true);
  CHECK(host[5].item<float>() == 0);
  CHECK(cox_standin_take_races() == 0);
  host.fill_(1);
  CHECK(cox_standin_take_races() == 1);
}

TEST_CASE("pinned memory is given out again when the copies of it have passed") {
  at::Tensor a = at::empty({1024}, kDevice);
  for (int i = 0; i < 8; ++i) {
    at::Tensor host = pinned(1024);
    host.fill_(i);
    a.copy_(host, true);
  }
  CHECK(a[5].item<float>() == 7);
  CHECK(cox_standin_take_races() == 0);
}

TEST_CASE("synchronisations are counted where they happen") {
  at::Tensor a = at::ones({1024}, kDevice);
  const at::Tensor host = pinned(1024);
  const auto counted = [&](const auto& work) {
    const std::uint64_t before = cox_standin_synchronisations();
    work();
    return cox_standin_synchronisations() - before;
  };
  c10::Event event(at::kCUDA);
  CHECK(counted([&] { a.add_(1).mul_(a); }) == 0);
  CHECK(counted([&] { host.copy_(a, true); }) == 0);
  CHECK(counted([&] {
          event.record(current_stream());
          event.query();
        }) == 0);
  CHECK(counted([&] { event.synchronize(); }) == 1);
  CHECK(counted([&] { a.sum().item<float>(); }) == 1);
  CHECK(counted([&] { a.cpu(); }) == 1);
  CHECK(counted([&] { host.copy_(a); }) == 1);
  CHECK(counted([&] { a.nonzero(); }) == 1);
  CHECK(counted([&] { current_stream().synchronize(); }) == 1);
  CHECK(counted([&] { cuda().synchronizeDevice(0); }) == 1);
}

TEST_CASE("asynchronous work keeps what is behind it pending, and nothing waits that need not") {
  at::Tensor a = at::zeros({4}, kDevice);
  const at::Tensor host = pinned(4);
  const c10::Stream side = side_stream();
  order(current_stream(), side);
  cox_standin_work* work = cox_standin_begin(handle(side));
  cox_standin_note(a.data_ptr(), a.nbytes(), 1, handle(side), "a broadcast");
  c10::Event event(at::kCUDA);
  {
    const c10::StreamGuard guard(side);
    host.copy_(a, true);
    event.record(side);
  }
  for (int i = 0; i < 5; ++i) CHECK_FALSE(event.query());
  std::thread worker([&] {
    CHECK(cox_standin_wait_turn(work) == 1);
    static_cast<float*>(cox_standin_shadow(a.data_ptr()))[2] = 7;
    cox_standin_finish(work);
  });
  event.synchronize();
  CHECK(host[2].item<float>() == 7);
  worker.join();
  plus_one_on(current_stream(), a);
  CHECK(cox_standin_take_races() == 0);  // because the host had waited
}

TEST_CASE("a kernel that reads what asynchronous work writes has to be ordered behind it") {
  const at::Tensor a = at::zeros({4}, kDevice);
  const c10::Stream side = side_stream();
  order(current_stream(), side);
  cox_standin_work* work = cox_standin_begin(handle(side));
  cox_standin_note(a.data_ptr(), a.nbytes(), 1, handle(side), "an all-reduce");
  const at::Tensor early = a + 1;
  CHECK(cox_standin_take_races() == 1);
  cox_standin_finish(work);
  CHECK(cox_standin_wait_turn(work) == 0);
  order(side, current_stream());
  CHECK((a + 1).sum().item<float>() == 4);
  CHECK(cox_standin_take_races() == 0);
}

TEST_CASE("a device that is full says so with LibTorch's own error") {
  CHECK_THROWS_AS(at::empty({std::int64_t{1} << 40}, kDevice), c10::OutOfMemoryError);
  CHECK(at::ones({4}, kDevice).sum().item<float>() == 4);
}

TEST_CASE(
    "a generator's state is a seed and an offset, and its numbers are those of a CPU generator") {
  torch::manual_seed(5);
  const at::Tensor there = at::rand({100}, kDevice), here = at::rand({100});
  CHECK(there.cpu().equal(here));
  at::Generator generator = at::globalContext().defaultGenerator(c10::Device(at::kCUDA, 0));
  const at::Tensor state = generator.get_state();
  CHECK(state.numel() == 16);
  CHECK(generator.get_offset() == 4 * 100);
  const at::Tensor dropped = at::dropout(there, 0.5, true), normal = at::randn({33}, kDevice);
  generator.set_state(state);
  CHECK(at::dropout(there, 0.5, true).equal(dropped));
  CHECK(at::randn({33}, kDevice).equal(normal));
}

TEST_CASE(
    "operators that the real library has no kernel for, and tensors of two devices, are refused") {
  const at::Tensor a = at::ones({4, 8}, kDevice);
  CHECK_THROWS(at::histogram(a, 4));
  CHECK_THROWS(at::add(a, at::ones({4, 8})));
  CHECK_THROWS(at::embedding(a, at::zeros({2}, at::kLong)));
  CHECK(at::add(a, at::scalar_tensor(1)).sum().item<float>() == 64);
}

TEST_CASE("the host cannot touch device memory, and a race that is left makes the process fail" *
          doctest::description("each in a process of its own")) {
  CHECK(run_alone("planted: the host reads device memory") != 0);
  CHECK(WEXITSTATUS(run_alone("planted: a race is left")) == 86);
  CHECK(WEXITSTATUS(run_alone("planted: nothing")) == 0);
}

TEST_CASE("planted: the host reads device memory" * doctest::skip()) {
  const at::Tensor a = at::ones({4}, kDevice);
  CHECK(*a.const_data_ptr<float>() == 1);
}

TEST_CASE("planted: a race is left" * doctest::skip()) {
  const at::Tensor a = at::ones({1024}, kDevice);
  plus_one_on(side_stream(), a);
}

TEST_CASE("planted: nothing" * doctest::skip()) {
  CHECK(at::ones({4}, kDevice).numel() == 4);
}
