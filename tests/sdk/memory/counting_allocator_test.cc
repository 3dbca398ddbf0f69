#include "sdk/src/memory/counting_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

using at::Tensor;
using cox::detail::counted_memory;
using cox::detail::counting_allocator_installed;
using cox::detail::install_counting_allocator;
using cox::detail::MemoryCount;
using cox::detail::reset_counted_peak;

namespace {

// Returns the live bytes since the installation, minus those at construction.
class Growth {
 public:
  Growth() {
    REQUIRE(install_counting_allocator().ok());
    reset_counted_peak();
    start_ = counted_memory().live_bytes;
  }
  ~Growth() { c10::SetCPUAllocator(plain_); }
  std::int64_t live() const { return counted_memory().live_bytes - start_; }
  std::int64_t peak() const { return counted_memory().peak_bytes - start_; }

 private:
  c10::Allocator* const plain_ = c10::GetCPUAllocator();
  std::int64_t start_ = 0;
};

Tensor bytes(std::int64_t count) {
  return torch::empty({count}, torch::kUInt8);
}

}  // namespace

TEST_CASE("live bytes are the requested bytes of the tensors that live, for random sizes") {
  const Growth growth;
  std::mt19937_64 random(1);
  std::vector<Tensor> tensors(40);
  std::vector<std::int64_t> sizes(tensors.size(), 0);
  std::int64_t expected = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::size_t at = random() % tensors.size();
    expected -= sizes[at];
    tensors[at] = Tensor();
    sizes[at] = static_cast<std::int64_t>(random() % 3 == 0 ? 0 : random() % 50000);
    tensors[at] = bytes(sizes[at]);
    expected += sizes[at];
    REQUIRE(growth.live() == expected);
  }
  tensors.clear();
  CHECK(growth.live() == 0);
}

TEST_CASE("the peak is the most live bytes at once, and starts again at what is live") {
  const Growth growth;
  Tensor kept = bytes(1000);
  { const Tensor gone = bytes(5000); }
  const Tensor later = bytes(100);
  CHECK(growth.live() == 1100);
  CHECK(growth.peak() == 6000);
  reset_counted_peak();
  CHECK(growth.peak() == 1100);
  kept = Tensor();
  CHECK(growth.peak() == 1100);
  CHECK(growth.live() == 100);
}

TEST_CASE("views share what their storage counts, and it stays while one of them lives") {
  const Growth growth;
  std::optional<Tensor> whole = torch::zeros({10, 100});
  Tensor row = whole->select(0, 3);
  const Tensor same = whole->view({-1});
  CHECK(growth.live() == 4000);
  whole.reset();
  CHECK(growth.live() == 4000);
}

TEST_CASE("resize_ counts the new storage, and both during the copy") {
  const Growth growth;
  Tensor tensor = torch::zeros({100});
  tensor.resize_({1000});
  CHECK(growth.live() == 4000);
  CHECK(growth.peak() == 4400);
  tensor.resize_({10});  // keeps its storage
  CHECK(growth.live() == 4000);
}

TEST_CASE("from_blob is not counted, a clone of it is") {
  const Growth growth;
  std::vector<float> data(100, 1.0F);
  const Tensor view = torch::from_blob(data.data(), {100});
  CHECK(growth.live() == 0);
  const Tensor clone = view.clone();
  CHECK(growth.live() == 400);
}

TEST_CASE("a tensor made before the installation is not counted, nor its free") {
  Tensor early = bytes(777);
  const Growth growth;
  const Tensor counted = bytes(10);
  early = Tensor();
  CHECK(growth.live() == 10);
}

TEST_CASE("a tensor freed after another allocator was set is still taken off") {
  std::int64_t before = 0;
  Tensor survivor;
  {
    const Growth growth;
    before = counted_memory().live_bytes;
    survivor = bytes(500);
  }
  const Tensor later = bytes(1 << 20);
  CHECK(counted_memory().live_bytes == before + 500);
  survivor = Tensor();
  CHECK(counted_memory().live_bytes == before);
}

TEST_CASE(
    "raw memory may be taken before the installation and given back after it, and the reverse") {
  c10::Allocator* const plain = c10::GetCPUAllocator();
  void* early = plain->raw_allocate(100);
  const Growth growth;
  c10::GetCPUAllocator()->raw_deallocate(early);
  CHECK(growth.live() == 0);
  void* late = c10::GetCPUAllocator()->raw_allocate(100);
  CHECK(growth.live() == 100);
  c10::SetCPUAllocator(plain);
  plain->raw_deallocate(late);
}

TEST_CASE("operations that go through oneDNN run and give back what they took") {
  const Growth growth;
  const auto run = [] {
    const Tensor x = torch::ones({64, 64});
    const Tensor y = torch::gelu(torch::linear(x.to(torch::kBFloat16), x.to(torch::kBFloat16)));
    torch::conv2d(torch::ones({2, 3, 16, 16}), torch::ones({4, 3, 3, 3}));
  };
  run();
  const std::int64_t after_first = growth.live();  // lasting caches
  run();
  CHECK(growth.live() == after_first);
  CHECK(growth.peak() > 0);
}

TEST_CASE("four threads that allocate and free at once leave an exact count") {
  const Growth growth;
  std::vector<std::vector<Tensor>> kept(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kept.size(); ++t) {
    threads.emplace_back([&mine = kept[t], t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 5000; ++i) {
        const Tensor passing = bytes(static_cast<std::int64_t>(1 + random() % 300));
        if (i % 50 == 0) mine.push_back(bytes(1000));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(growth.live() == 4 * 100 * 1000);
  CHECK(growth.peak() >= growth.live());
  CHECK(growth.peak() <= growth.live() + 4 * 300);
  for (std::vector<Tensor>& tensors : kept) {  // freed on another thread
    std::thread([&tensors] { tensors.clear(); }).join();
  }
  CHECK(growth.live() == 0);
}

TEST_CASE("installing twice is one installation") {
  {
    const Growth growth;
    CHECK(install_counting_allocator().ok());
    const Tensor once = bytes(64);
    CHECK(growth.live() == 64);
  }
  CHECK_FALSE(counting_allocator_installed());
}
