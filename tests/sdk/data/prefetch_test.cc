#include "sdk/src/data/prefetch.h"

#include <signal.h>

#include <atomic>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "tests/support/no_threads.h"

#include <doctest/doctest.h>

using cox::detail::Prefetcher;

namespace {

// Replaces a batch. Has the samples, and a count of live batches.
struct Samples {
  explicit Samples(std::vector<std::int64_t> of, std::shared_ptr<std::atomic<int>> count)
      : indices(std::move(of)), alive(std::move(count)) {
    ++*alive;
  }
  Samples(Samples&& other) noexcept : indices(std::move(other.indices)), alive(other.alive) {
    ++*alive;
  }
  ~Samples() { --*alive; }
  std::vector<std::int64_t> indices;
  std::shared_ptr<std::atomic<int>> alive;
};

using Indices = std::span<const std::int64_t>;

struct Source {
  Samples operator()(Indices indices) const {
    if (gate.valid()) gate.wait();
    calls->fetch_add(1);
    if (!indices.empty() && indices[0] < 0) throw std::out_of_range("sample below 0");
    return Samples({indices.begin(), indices.end()}, alive);
  }
  std::shared_future<void> gate{};  // closed until a test opens it
  std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<int>> alive = std::make_shared<std::atomic<int>>(0);
};

std::vector<std::int64_t> samples_of(std::uint64_t step) {
  return {static_cast<std::int64_t>(step), static_cast<std::int64_t>(step * 3)};
}

}  // namespace

TEST_SUITE("prefetch") {
  TEST_CASE("a loop takes the batches it asked for, some steps ahead") {
    const Source source;
    Prefetcher<Samples> prefetcher(source, 3);
    for (std::uint64_t step = 0; step < 3; ++step) {
      CHECK(prefetcher.request(step, samples_of(step)));
    }
    for (std::uint64_t step = 0; step < 200; ++step) {
      REQUIRE(prefetcher.take(step).indices == samples_of(step));
      REQUIRE(prefetcher.request(step + 3, samples_of(step + 3)));
    }
    CHECK(prefetcher.holds(202));
    CHECK_FALSE(prefetcher.holds(199));
  }

  TEST_CASE("batches may be taken in another order, and empty ones too") {
    const Source source;
    Prefetcher<Samples> prefetcher(source, 3);
    for (const std::uint64_t key : {5u, 9u}) CHECK(prefetcher.request(key, samples_of(key)));
    CHECK(prefetcher.request(7, {}));
    CHECK(prefetcher.take(7).indices.empty());
    CHECK(prefetcher.take(5).indices == samples_of(5));
    CHECK(prefetcher.take(9).indices == samples_of(9));
  }

  TEST_CASE("no more than the depth is asked for, whether got or not") {
    const Source source;
    Prefetcher<Samples> prefetcher(source, 2);
    CHECK(prefetcher.request(0, samples_of(0)));
    CHECK(prefetcher.request(1, samples_of(1)));
    CHECK_FALSE(prefetcher.request(2, samples_of(2)));
    CHECK_FALSE(prefetcher.holds(2));
    prefetcher.take(1);
    CHECK(prefetcher.request(2, samples_of(2)));
    CHECK_FALSE(prefetcher.request(3, samples_of(3)));
    CHECK_THROWS_AS(prefetcher.request(2, samples_of(2)), cox::Error);
    CHECK_THROWS_AS(prefetcher.take(3), cox::Error);
  }

  TEST_CASE("an error of the source comes out of the take of its batch, and of no other") {
    const Source source;
    Prefetcher<Samples> prefetcher(source, 3);
    CHECK(prefetcher.request(0, samples_of(0)));
    CHECK(prefetcher.request(1, {-1}));
    CHECK(prefetcher.request(2, samples_of(2)));
    CHECK(prefetcher.take(0).indices == samples_of(0));
    CHECK_THROWS_WITH_AS(prefetcher.take(1), "sample below 0", std::out_of_range);
    CHECK_FALSE(prefetcher.holds(1));
    CHECK(prefetcher.take(2).indices == samples_of(2));
    CHECK(prefetcher.request(1, samples_of(1)));
    CHECK(prefetcher.take(1).indices == samples_of(1));
  }

  TEST_CASE("asking and looking do not wait for a source that hangs; cancelling forgets the rest") {
    std::promise<void> open;
    const Source source{.gate = open.get_future().share()};
    Prefetcher<Samples> prefetcher(source, 4);
    for (std::uint64_t step = 0; step < 4; ++step) prefetcher.request(step, samples_of(step));
    CHECK(prefetcher.holds(3));
    CHECK_FALSE(prefetcher.request(4, samples_of(4)));
    auto cancelled = std::async(std::launch::async, [&] { prefetcher.cancel(); });
    open.set_value();
    cancelled.get();
    for (std::uint64_t step = 0; step < 4; ++step) CHECK_FALSE(prefetcher.holds(step));
    CHECK(*source.calls <= 4);
    CHECK(*source.alive == 0);
    CHECK(prefetcher.request(0, {8}));
    CHECK(prefetcher.take(0).indices == std::vector<std::int64_t>{8});
  }

  TEST_CASE("whatever is asked for, taken and cancelled, nothing is lost, mixed up or leaked") {
    const Source source;
    std::mt19937 random(1);
    for (int round = 0; round < 50; ++round) {
      Prefetcher<Samples> prefetcher(source, 1 + random() % 4);
      std::set<std::uint64_t> asked;
      for (std::uint64_t i = 0; i < 60; ++i) {
        const std::uint64_t what = random() % 8;
        if (what == 0) {
          prefetcher.cancel();
          asked.clear();
        } else if (what < 5) {
          if (prefetcher.request(i, samples_of(i))) asked.insert(i);
        } else if (!asked.empty()) {
          const std::uint64_t key = *asked.begin();
          REQUIRE(prefetcher.take(key).indices == samples_of(key));
          asked.erase(key);
        }
      }
    }
    CHECK(*source.alive == 0);
  }

  TEST_CASE("the thread that gets batches takes no signals") {
    const auto blocks_them = [](Indices) {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      return sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1;
    };
    Prefetcher<bool> prefetcher(blocks_them, 1);
    prefetcher.request(0, {});
    CHECK(prefetcher.take(0));
    CHECK_FALSE(blocks_them({}));
  }

  TEST_CASE("without a thread the caller gets its batches, and signals are as they were") {
    const Source source;
    const cox::test::NoThreads none;
    Prefetcher<Samples> prefetcher(source, 2);
    CHECK(prefetcher.thread_status().code() == cox::StatusCode::resource_exhausted);
    CHECK(prefetcher.request(0, samples_of(0)));
    CHECK(prefetcher.request(1, samples_of(1)));
    CHECK(prefetcher.take(1).indices == samples_of(1));
    CHECK(prefetcher.take(0).indices == samples_of(0));
    prefetcher.cancel();
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    CHECK(sigismember(&mask, SIGTERM) == 0);
  }
}
