// Buckets in device memory, summed over the fake NCCL: equal to the host path, in order behind the
// training stream, with final errors.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <vector>

#include "coordinator/transport/nccl/device_exchange.h"
#include "tests/transport/nccl_trial.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

using nccl::Type;

DeviceExchangeOptions exchange_options() {
  DeviceExchangeOptions options;
  options.wait = patient();
  return options;
}

// A rank with float32 buckets of these sizes.
class Trainer {
 public:
  Trainer(Communicator& ranks, const std::vector<std::size_t>& sizes,
          std::chrono::nanoseconds end_limit = test_options().end_limit)
      : lane_(std::make_shared<test::HostLane>(training_)) {
    for (const std::size_t size : sizes) {
      memory_.push_back(*lane_->staging(size * sizeof(float)));
      buckets_.push_back({memory_.back().device, size, Type::float32});
    }
    std::unique_ptr<NcclGroup> made;
    NcclGroupOptions group = test_options();
    group.end_limit = end_limit;
    status_ = take(NcclGroup::create(ranks, fake_nccl(), group), made);
    group_ = std::move(made);
  }

  Status open(Communicator& ranks, const DeviceExchangeOptions& options) {
    if (!status_.ok()) return status_;
    return take(DeviceExchange::create(ranks, group_, lane_, buckets_, options), exchange);
  }

  // Backward's kernel for a bucket: writes when the training stream reaches it.
  void fill(std::size_t bucket, const std::vector<float>& values) {
    training_.give([values, to = buckets_[bucket].address] {
      if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(float));
      return true;
    });
  }

  // The optimizer's kernel: reads the sum in the order of the training stream.
  void read(std::size_t bucket, std::vector<float>& into) {
    into.assign(buckets_[bucket].count, -1);
    training_.give([&into, from = buckets_[bucket].address] {
      if (!into.empty()) std::memcpy(into.data(), from, into.size() * sizeof(float));
      return true;
    });
  }

  // Ends the round with the sums on the device.
  Status sums() {
    Status taken = exchange->wait_all({});
    return taken.ok() ? exchange->wait_for_device([] { return ok_status(); }) : taken;
  }

  // Returns whether the training stream has ended.
  bool finish() {
    Waiter waiter(patient());
    while (!training_.drain()) {
      if (!waiter.pause().ok()) return false;
    }
    return true;
  }

  test::HostStream& training() { return training_; }
  NcclGroup& group() { return *group_; }

 private:
  test::HostStream training_;
  std::shared_ptr<test::HostLane> lane_;
  std::vector<StagingBuffer> memory_;
  std::vector<DeviceBucket> buckets_;
  std::shared_ptr<NcclGroup> group_;
  Status status_;

 public:
  std::unique_ptr<DeviceExchange> exchange;  // destroyed first
};

// Records the work submitted to the lane's stream.
class NotingLane final : public test::HostLane {
 public:
  Status mark(Mark mark) override {
    given_ += concat("mark ", mark, ", ");
    return HostLane::mark(mark);
  }
  Status follow(Mark mark) override {
    given_ += concat("follow ", mark, ", ");
    return HostLane::follow(mark);
  }
  const std::string& given() const { return given_; }

 private:
  std::string given_;
};

const std::vector<std::size_t> kSizes = {0, 1, 1000, 0, 70'000, 7};

std::vector<float> gradient(std::int32_t rank, std::size_t bucket, int round) {
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + static_cast<int>(bucket) * 10 + round));
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(kSizes[bucket]);
  for (float& value : values) value = uniform(random);
  return values;
}

// Returns the sum of ranks 0 to n - 1 in the host path's order.
std::vector<double> expected_sum(std::int32_t ranks, std::size_t bucket, int round) {
  std::vector<double> sum(kSizes[bucket], 0);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto values = gradient(r, bucket, round);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(values[i]);
  }
  return sum;
}

std::string compare(const std::vector<float>& found, const std::vector<double>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::abs(found[i] - expected[i]) <= 1e-5) continue;
    return concat("element ", i, ": expected ", expected[i], ", found ", found[i]);
  }
  return "";
}

std::string train(Communicator& ranks) {
  Trainer trainer(ranks, kSizes);
  if (Status s = trainer.open(ranks, exchange_options()); !s.ok()) return s.text();
  const std::int32_t me = ranks.rank().value();
  std::vector<std::vector<float>> sums(kSizes.size());
  for (int round = 0; round < 4; ++round) {
    for (std::size_t b = 0; b < kSizes.size(); ++b) {
      trainer.fill(b, gradient(me, b, round));
      if (Status s = trainer.exchange->start(b); !s.ok()) return s.text();
      if (Status s = trainer.exchange->advance(); !s.ok()) return s.text();
    }
    if (Status s = trainer.sums(); !s.ok()) return s.text();
    for (std::size_t b = 0; b < kSizes.size(); ++b) trainer.read(b, sums[b]);
    if (!trainer.finish()) return "the training stream is stuck";
    for (std::size_t b = 0; b < kSizes.size(); ++b) {
      const std::string wrong = compare(sums[b], expected_sum(ranks.size(), b, round));
      if (!wrong.empty()) return concat("round ", round, ", bucket ", b, ", ", wrong);
    }
  }
  return "";
}

TEST_SUITE("nccl exchange") {
  TEST_CASE("sums are those of the host path, and in the order of the streams") {
    const Script script("rank=1 every=3 slow_us=1000; rank=0 settle=3");
    for (const std::int32_t ranks : {1, 2, 4}) {
      CAPTURE(ranks);
      const LoopbackWorld world(ranks);
      const auto results = on_every_rank(world, ranks, train);
      CHECK(results == std::vector<std::string>(static_cast<std::size_t>(ranks)));
      CHECK(world.verify().ok());
    }
  }

  TEST_CASE("wait_all returns while the device is still at work, and no stream waits for that") {
    const Script script("rank=1 slow_us=100000");
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      Trainer trainer(c, kSizes);
      if (Status s = trainer.open(c, exchange_options()); !s.ok()) return s.text();
      for (std::size_t b = 0; b < kSizes.size(); ++b) {
        trainer.fill(b, gradient(c.rank().value(), b, 0));
        if (Status s = trainer.exchange->start(b); !s.ok()) return s.text();
      }
      if (Status s = trainer.exchange->wait_all({}); !s.ok()) return s.text();
      if (!trainer.training().drain()) return "the training stream waits";
      int looks = 0;
      const Status done = trainer.exchange->wait_for_device([&] {
        ++looks;
        return ok_status();
      });
      if (!done.ok()) return done.text();
      return looks > 0 ? "behind" : "not behind";
    });
    CHECK(std::ranges::count(results, std::string("behind")) >= 1);
    CHECK(std::ranges::count(results, std::string("the training stream waits")) == 0);
  }

  TEST_CASE("all buckets are with the device before the host waits for a stream that is at work") {
    const Script script("settle=5");
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      Trainer trainer(c, kSizes);
      if (Status s = trainer.open(c, exchange_options()); !s.ok()) return s.text();
      auto is_backward_over = std::make_shared<std::atomic<bool>>(false);
      trainer.training().give([is_backward_over] { return is_backward_over->load(); });
      for (std::size_t b = 0; b < kSizes.size(); ++b) {
        trainer.fill(b, gradient(c.rank().value(), b, 0));
        if (Status s = trainer.exchange->start(b); !s.ok()) return s.text();
      }
      if (trainer.exchange->is_done(kSizes.size() - 1)) return "already there";
      const Status sent = trainer.exchange->send_off();
      const bool are_there = trainer.exchange->is_done(kSizes.size() - 1);
      is_backward_over->store(true);
      if (Status s = sent.ok() ? trainer.sums() : sent; !s.ok()) return s.text();
      if (!trainer.finish()) return "stuck";
      return are_there ? "" : "not there";
    });
    CHECK(results == std::vector<std::string>(2));
  }

  TEST_CASE("a host whose stream is idle does not wait for NCCL before it has to") {
    const Script script("settle=1000000000");
    const LoopbackWorld world(1);
    on_every_rank(world, 1, [&](Communicator& c) -> std::string {
      Trainer trainer(c, {8});
      DeviceExchangeOptions options = exchange_options();
      options.limit = std::chrono::milliseconds(100);
      REQUIRE(trainer.open(c, options).ok());
      CHECK(trainer.exchange->send_off().ok());  // nothing to send
      CHECK(trainer.exchange->start(0).ok());
      CHECK(trainer.exchange->send_off().ok());
      CHECK_FALSE(trainer.exchange->is_done(0));
      const Status late = trainer.exchange->wait_all({});
      CHECK(late.code() == StatusCode::unavailable);
      CHECK(late.message().find("NCCL has not passed this bucket to the device") !=
            std::string::npos);
      return "";
    });
  }

  TEST_CASE("a sum does not wait for a bucket that follows before NCCL has taken the sum") {
    const Script script("settle=5");
    const LoopbackWorld world(1);
    on_every_rank(world, 1, [&](Communicator& c) -> std::string {
      auto lane = std::make_shared<NotingLane>();
      auto group = NcclGroup::create(c, fake_nccl(), test_options());
      REQUIRE(group.ok());
      std::vector<DeviceBucket> buckets;
      for (int b = 0; b < 2; ++b)
        buckets.push_back({lane->staging(8 * sizeof(float))->device, 8, Type::float32});
      auto exchange =
          DeviceExchange::create(c, *std::move(group), lane, buckets, exchange_options());
      REQUIRE(exchange.ok());
      for (std::size_t b = 0; b < 2; ++b) CHECK((*exchange)->start(b).ok());
      CHECK((*exchange)->wait_all({}).ok());
      // For each bucket: the fill and the sum; then the round.
      CHECK(lane->given() == "follow 0, mark 1, follow 2, mark 3, mark 4, ");
      CHECK((*exchange)->wait_for_device([] { return ok_status(); }).ok());
      return "";
    });
  }

  TEST_CASE("exchanges that take turns on one lane know their own rounds") {
    const Script script("rank=1 from=2 lost");
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      Trainer trainer(c, {8, 8});
      DeviceExchangeOptions options = exchange_options();
      if (Status s = trainer.open(c, options); !s.ok()) return s.text();
      auto first = std::move(trainer.exchange);
      options.limit = std::chrono::milliseconds(200);
      if (Status s = trainer.open(c, options); !s.ok()) return s.text();
      for (DeviceExchange* exchange : {first.get(), trainer.exchange.get()}) {
        Status s;
        for (std::size_t b = 0; b < 2 && s.ok(); ++b) s = exchange->start(b);
        if (s.ok()) s = exchange->wait_all({});
        if (!s.ok()) return s.text();
      }
      const auto nothing = [] { return ok_status(); };
      const Status done = first->wait_for_device(nothing);
      const Status late = trainer.exchange->wait_for_device(nothing);
      trainer.exchange->leave("late");
      if (!trainer.finish()) return "stuck";
      return done.ok() && !late.ok() ? "" : done.text() + ", " + late.text();
    });
    CHECK(results == std::vector<std::string>(2));
  }

  TEST_CASE("buckets start in order, and a round ends before the next begins") {
    const LoopbackWorld world(1);
    on_every_rank(world, 1, [&](Communicator& c) -> std::string {
      Trainer trainer(c, kSizes);
      REQUIRE(trainer.open(c, exchange_options()).ok());
      CHECK(trainer.exchange->wait_all({}).code() == StatusCode::failed_precondition);
      CHECK(trainer.exchange->start(1).code() == StatusCode::failed_precondition);
      CHECK(trainer.exchange->start(0).ok());
      CHECK(trainer.exchange->start(0).code() == StatusCode::failed_precondition);
      CHECK(trainer.exchange->wait_all({}).code() == StatusCode::failed_precondition);
      CHECK(trainer.exchange->buckets() == kSizes.size());
      CHECK(trainer.exchange->buffer(2).size() == 4000);
      CHECK(trainer.exchange->path() == std::string("nccl"));
      return "";
    });
  }

  TEST_CASE("ranks with other buckets are told so") {
    const LoopbackWorld world(3);
    const auto results = on_every_rank(world, 3, [&](Communicator& c) {
      Trainer trainer(c, c.rank().value() == 2 ? std::vector<std::size_t>{8, 9}
                                               : std::vector<std::size_t>{8, 8});
      return trainer.open(c, exchange_options()).text();
    });
    for (const std::string& result : results) {
      CHECK(result.find("invalid_argument: exchange over NCCL: expected the same buckets and "
                        "options on every rank, found different ones on rank 2") == 0);
    }
  }

  TEST_CASE("an exchange that goes in the middle of a round takes its group along, for all ranks") {
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      Trainer trainer(c, {8, 8});
      if (Status s = trainer.open(c, exchange_options()); !s.ok()) return s.text();
      const bool fails = c.rank().value() == 1;
      for (std::size_t b = 0; b < (fails ? 1 : 2); ++b) {
        if (Status s = trainer.exchange->start(b); !s.ok()) return s.text();
      }
      trainer.exchange.reset();
      if (trainer.group().status().ok()) return "not aborted";
      return trainer.open(c, exchange_options()).text();
    });
    for (const std::string& result : results) {
      CHECK(result.find("unavailable: exchange over NCCL: expected a group of all ranks, found "
                        "that the group has ended on rank 0") == 0);
    }
  }

  TEST_CASE("an exchange that ends between rounds leaves its group to the next one") {
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      Trainer trainer(c, {8, 8});
      for (int i = 0; i < 2; ++i) {
        if (Status s = trainer.open(c, exchange_options()); !s.ok()) return s.text();
        for (std::size_t b = 0; b < 2; ++b) {
          if (Status s = trainer.exchange->start(b); !s.ok()) return s.text();
        }
        if (Status s = trainer.sums(); !s.ok()) return s.text();
        if (!trainer.finish()) return "stuck";
        trainer.exchange.reset();
      }
      return trainer.group().status().ok() ? "" : "aborted";
    });
    CHECK(results == std::vector<std::string>(2));
  }

  TEST_CASE(
      "a round that the device never finishes ends the wait, and the group with the exchange") {
    const Script script("rank=1 op=1 lost");
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      Trainer trainer(c, {8, 8});
      DeviceExchangeOptions options = exchange_options();
      options.limit = std::chrono::milliseconds(200);
      if (Status s = trainer.open(c, options); !s.ok()) return s.text();
      for (std::size_t b = 0; b < 2; ++b) {
        if (Status s = trainer.exchange->start(b); !s.ok()) return s.text();
      }
      if (Status s = trainer.exchange->wait_all({}); !s.ok()) return s.text();
      const Status late = trainer.exchange->wait_for_device([] { return ok_status(); });
      trainer.exchange.reset();
      if (trainer.group().status().ok()) return "not aborted";
      return trainer.finish() ? late.text() : "the training stream is stuck";
    });
    for (const std::string& result : results) {
      CHECK(result.find("unavailable: exchange over NCCL: expected the device to finish its sums "
                        "in time, found them unfinished in round 0") == 0);
    }
  }

  TEST_CASE("behind a lost sum whose abort does not end either nobody waits") {
    const Script script("rank=1 op=1 lost; rank=0 abort=hang; rank=1 abort=hang");
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      Trainer trainer(c, {8, 8}, std::chrono::milliseconds(20));
      DeviceExchangeOptions options = exchange_options();
      options.limit = std::chrono::milliseconds(200);
      if (Status s = trainer.open(c, options); !s.ok()) return s.text();
      for (std::size_t b = 0; b < 2; ++b) {
        if (Status s = trainer.exchange->start(b); !s.ok()) return s.text();
      }
      if (trainer.sums().ok()) return "not lost";
      trainer.exchange->leave("late");
      if (!trainer.group().may_still_write()) return "the abort ended";
      return trainer.training().drain() ? "" : "the training stream is stuck";
    });
    CHECK(results == std::vector<std::string>(2));
  }

  TEST_CASE("a host that gives up its wait for the device takes the group along") {
    const Script script("rank=1 op=1 lost");
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      Trainer trainer(c, {8, 8});
      if (Status s = trainer.open(c, exchange_options()); !s.ok()) return s.text();
      for (std::size_t b = 0; b < 2; ++b) {
        if (Status s = trainer.exchange->start(b); !s.ok()) return s.text();
      }
      if (Status s = trainer.exchange->wait_all({}); !s.ok()) return s.text();
      const Status gone = trainer.exchange->wait_for_device([] { return unavailable("gone"); });
      if (gone != unavailable("gone")) return gone.text();
      trainer.exchange.reset();
      if (trainer.group().status().ok() || trainer.group().may_still_write()) return "not aborted";
      return trainer.finish() ? "" : "the training stream is stuck";
    });
    CHECK(results == std::vector<std::string>(2));
  }

  TEST_CASE("an error of NCCL's ends the exchange for good, on the rank that has it") {
    const Script script("rank=1 op=1 error=6");
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      Trainer trainer(c, {8, 8});
      DeviceExchangeOptions options = exchange_options();
      options.limit = std::chrono::seconds(1);
      if (Status s = trainer.open(c, options); !s.ok()) return s.text();
      Status s;
      for (std::size_t b = 0; b < 2 && s.ok(); ++b) s = trainer.exchange->start(b);
      if (s.ok()) s = trainer.exchange->wait_all({});
      Waiter waiter(patient());
      while (s.ok() && waiter.pause().ok()) s = trainer.exchange->advance();
      if (trainer.exchange->advance() != s || trainer.exchange->start(0) != s)
        return "it did not stay";
      trainer.exchange->leave(s.message());
      if (trainer.group().status().ok()) return "not aborted";
      return trainer.finish() ? s.text() : "the training stream is stuck";
    });
    CHECK(results[1].find("unavailable: NCCL: asynchronous error: remote error (6)") == 0);
    CHECK(results[0].find("unavailable: exchange over NCCL: expected the device to finish its sums "
                          "in time, found them unfinished in round 0") == 0);
  }
}

}  // namespace
}  // namespace cox::transport
