// One NCCL communicator of all ranks, over the fake library: operations, errors for misuse, and a
// failed start on one rank, which fails on all ranks for the same reason.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/support/no_threads.h"
#include "tests/transport/nccl_trial.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

using nccl::Operator;
using nccl::Type;

// Numbers on "the device" of a rank.
template <class T>
struct Numbers {
  StagingBuffer buffer;
  std::span<T> host;
  Numbers(test::HostLane& lane, std::size_t count) : buffer(*lane.staging(count * sizeof(T))) {
    host = {reinterpret_cast<T*>(buffer.host.data()), count};
  }
  std::size_t bytes() const { return buffer.host.size(); }
};

void check_all(const std::vector<std::string>& results) {
  for (std::size_t r = 0; r < results.size(); ++r) {
    INFO("rank " << r);
    CHECK(results[r] == "");
  }
}

// Runs an operation on floats between an upload and a download. Returns an error, empty on success.
std::string transform(NcclRank& rank, Numbers<float>& in, Numbers<float>& out,
                      const std::function<Status()>& operation) {
  Status s = rank.lane.upload(in.buffer, in.bytes());
  if (s.ok()) s = operation();
  if (s.ok()) s = rank.settle();
  if (s.ok()) s = rank.lane.download(out.buffer, out.bytes());
  if (s.ok()) s = rank.finish();
  return s.ok() ? "" : s.text();
}

// Operations on more numbers than the fake moves at a time. Each returns an error, empty on
// success.
class Operations {
 public:
  Operations(NcclRank& rank, const Communicator& ranks)
      : rank_(rank),
        ranks_(static_cast<std::size_t>(ranks.size())),
        me_(static_cast<float>(ranks.rank().value())),
        one_(rank.lane, kCount) {}

  std::string reduce() {
    const float n = static_cast<float>(ranks_);
    for (const auto& [operation, expected] :
         {std::pair{Operator::sum, n * (n + 1) / 2}, std::pair{Operator::max, n}}) {
      std::ranges::fill(one_.host, me_ + 1);
      const std::string why = transform(rank_, one_, one_, [&, op = operation] {
        return rank_.group->all_reduce(one_.buffer.device, one_.buffer.device, kCount,
                                       Type::float32, op, rank_.lane.stream());
      });
      if (!why.empty()) return why;
      if (one_.host[0] != expected || one_.host[kCount - 1] != expected) return "all-reduce";
    }
    return "";
  }

  std::string broadcast() {
    std::ranges::fill(one_.host, me_ + 7);
    const RankId last(static_cast<std::int32_t>(ranks_) - 1);
    const std::string why = transform(rank_, one_, one_, [&] {
      return rank_.group->broadcast(one_.buffer.device, one_.buffer.device, kCount, Type::float32,
                                    last, rank_.lane.stream());
    });
    if (!why.empty()) return why;
    return one_.host[kCount - 1] == static_cast<float>(ranks_) + 6 ? "" : "broadcast";
  }

 private:
  static constexpr std::size_t kCount = 40'000;
  NcclRank& rank_;
  std::size_t ranks_;
  float me_;
  Numbers<float> one_;
};

TEST_SUITE("nccl group") {
  TEST_CASE("operations give every rank what NCCL says they give") {
    for (const std::int32_t ranks : {1, 2, 4}) {
      const LoopbackWorld world(ranks);
      check_all(on_every_rank(world, ranks, [&](Communicator& c) -> std::string {
        NcclRank rank;
        if (std::string why = rank.join(c); !why.empty()) return why;
        Operations operations(rank, c);
        std::string why = operations.reduce();
        return why.empty() ? operations.broadcast() : why;
      }));
      CHECK(world.verify().ok());
    }
  }

  TEST_CASE("nothing arrives before the mark behind it has passed") {
    const Script slow("rank=0 slow_us=20000");
    const LoopbackWorld world(2);
    check_all(on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      NcclRank rank;
      if (std::string why = rank.join(c); !why.empty()) return why;
      Numbers<float> mine(rank.lane, 4);
      mine.host[0] = c.rank().value() == 0 ? 5 : 0;
      Status s = rank.lane.upload(mine.buffer, mine.bytes());
      if (s.ok()) {
        s = rank.group->broadcast(mine.buffer.device, mine.buffer.device, 4, Type::float32, kRoot,
                                  rank.lane.stream());
      }
      if (s.ok()) s = rank.settle();
      if (s.ok()) s = rank.lane.download(mine.buffer, mine.bytes());
      if (s.ok()) s = rank.lane.mark(1);
      if (!s.ok()) return s.text();
      const bool was_early = *rank.lane.passed(1) == Progress::done;
      if (was_early && mine.host[0] != 5) return "the mark passed before the collective";
      s = rank.finish();
      if (!s.ok()) return s.text();
      return *rank.lane.passed(1) == Progress::done && mine.host[0] == 5 ? "" : "lost";
    }));
  }

  TEST_CASE("a call before the last one has settled is refused") {
    const LoopbackWorld world(1);
    check_all(on_every_rank(world, 1, [&](Communicator& c) -> std::string {
      NcclRank rank;
      if (std::string why = rank.join(c); !why.empty()) return why;
      Numbers<float> mine(rank.lane, 4);
      const auto call = [&] {
        return rank.group->broadcast(mine.buffer.device, mine.buffer.device, 4, Type::float32,
                                     kRoot, rank.lane.stream());
      };
      if (const Status first = call(); !first.ok()) return first.text();
      if (call().code() != StatusCode::failed_precondition) return "the second call was taken";
      const Status finished = rank.finish();
      return finished.ok() ? "" : finished.text();
    }));
  }

  TEST_CASE("ranks that call different things are told so") {
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      NcclRank rank;
      if (std::string why = rank.join(c); !why.empty()) return why;
      Numbers<float> mine(rank.lane, 8);
      const std::size_t count = c.rank().value() == 0 ? 8 : 7;
      const Status called =
          rank.group->all_reduce(mine.buffer.device, mine.buffer.device, count, Type::float32,
                                 Operator::sum, rank.lane.stream());
      if (!called.ok()) return called.text();
      const Status finished = rank.finish();
      rank.group->abort(finished);
      return finished.text();
    });
    for (const std::string& result : results) {
      CHECK(result.find("invalid usage (5)") != std::string::npos);
      CHECK(result.find("of 8 elements") != std::string::npos);
      CHECK(result.find("of 7 elements") != std::string::npos);
    }
  }

  TEST_CASE("a start that fails on one rank fails on all, with its reason") {
    struct Case {
      const char* script;
      const char* expected;
    };
    for (const Case& it : {
             Case{"rank=1 init=fail",
                  "rank 1: NCCL: start: system error (2): fake NCCL: its start"},
             Case{"rank=0 init=error", "rank 0: NCCL: asynchronous error: system error (2): fake"},
             Case{"rank=2 init=hang", "NCCL's start: expected it to finish within 0.300 s"},
         }) {
      CAPTURE(it.script);
      const Script script(it.script);
      const LoopbackWorld world(3);
      NcclGroupOptions options = test_options();
      options.start_limit = std::chrono::milliseconds(300);
      const auto results = on_every_rank(world, 3, [&](Communicator& c) -> std::string {
        NcclRank rank;
        return rank.join(c, options);
      });
      CHECK(results[0].find("unavailable: ") == 0);
      CHECK_MESSAGE(results[0].find(it.expected) != std::string::npos, results[0]);
      CHECK(results == std::vector<std::string>(3, results[0]));
      CHECK(world.verify().ok());
    }
  }

  TEST_CASE("a rank without the library, without a device, or late, is no trouble for the others") {
    const LoopbackWorld world(3);
    const auto results = on_every_rank(world, 3, [&](Communicator& c) -> std::string {
      const bool is_second = c.rank().value() == 1;
      const Result<NcclLibrary> library =
          is_second ? NcclLibrary::open("libno-such-nccl.so.2") : fake_nccl();
      const auto without = NcclGroup::create(c, library, test_options());
      if (without.ok()) return "a group without a library";
      const auto blind = NcclGroup::create(c, fake_nccl(), test_options(), [&] {
        return is_second ? unavailable("no such device") : ok_status();
      });
      if (blind.ok()) return "a group without a device";
      if (is_second) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      NcclRank rank;
      if (std::string why = rank.join(c); !why.empty()) return why;
      return without.status().message() + " | " + blind.status().message();
    });
    CHECK(results[0].find("rank 1: NCCL: expected a library libno-such-nccl.so.2") == 0);
    CHECK(results[0].find("| rank 1: no such device") != std::string::npos);
    CHECK(results == std::vector<std::string>(3, results[0]));
  }

  TEST_CASE("an error in the middle is typed, stays, and abort frees the stream on all ranks") {
    const Script script("rank=1 op=1 error=6");
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      NcclRank rank;
      if (std::string why = rank.join(c); !why.empty()) return why;
      Numbers<float> mine(rank.lane, 8);
      void* device = mine.buffer.device;
      Status s;
      for (int i = 0; i < 2 && s.ok(); ++i) {
        s = rank.group->broadcast(device, device, 8, Type::float32, kRoot, rank.lane.stream());
        if (s.ok() && i == 0) s = rank.finish();
      }
      if (!s.ok()) return "too early: " + s.text();
      if (c.rank().value() == 1) {
        s = rank.finish();
        if (rank.group->settle().status() != s) return "the error did not stay";
      } else if (s = rank.settle(); !s.ok()) {
        return s.text();
      }
      if (s.ok()) s = rank.lane.mark(2);
      rank.group->abort(unavailable("rank 1 has failed"));
      if (rank.group->may_still_write() || rank.group->status().ok()) return "not aborted";
      const auto passed = rank.lane.passed(2);
      if (!passed.ok() || *passed != Progress::done) return "the stream is stuck";
      return rank.group->status().text();
    });
    CHECK(results[0] == "unavailable: rank 1 has failed");
    CHECK(results[1].find("unavailable: NCCL: asynchronous error: remote error (6): fake NCCL, "
                          "rank 1: collective 1 was scripted to fail") == 0);
  }

  TEST_CASE("an abort that cannot be started is told, and made good when the group goes") {
    const LoopbackWorld world(1);
    const auto results = on_every_rank(world, 1, [&](Communicator& c) -> std::string {
      NcclRank rank;
      if (std::string why = rank.join(c, test_options()); !why.empty()) return why;
      {
        const test::NoThreads none;
        rank.group->abort(unavailable("rank 0 is lost"));
      }
      if (!rank.group->may_still_write()) return "aborted";
      const std::string text = rank.group->status().text();
      rank.group->abort(unavailable("again"));
      return rank.group->may_still_write() ? "not aborted" : text;
    });
    CHECK(results[0].find("unavailable: NCCL's abort could not be started: ") == 0);
    CHECK(results[0].find(": rank 0 is lost") != std::string::npos);
  }

  TEST_CASE("an abort that never ends costs its limit, and is told") {
    const Script script("rank=1 abort=hang");
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      NcclGroupOptions options = test_options();
      if (c.rank().value() == 1) options.end_limit = std::chrono::milliseconds(20);
      NcclRank rank;
      if (std::string why = rank.join(c, options); !why.empty()) return why;
      rank.group->abort(unavailable("rank 0 is lost"));
      return rank.group->status().text();
    });
    CHECK(results[0] == "unavailable: rank 0 is lost");
    CHECK(results[1] ==
          "unavailable: NCCL's abort has not finished after 0.0200 s: rank 0 is lost");
  }
}

}  // namespace
}  // namespace cox::transport
