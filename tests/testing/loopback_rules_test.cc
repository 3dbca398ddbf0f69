// Misuses that would hang or corrupt data under MPI: each is an error on every rank, and the
// message names the place, the rank and the call.
#include <array>
#include <functional>
#include <string>

#include "coordinator/testing/loopback.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::testing {
namespace {

using namespace transport;

using Start = std::function<Result<Request>(Communicator&)>;

struct Buffer {
  std::array<std::byte, 64> send{};
  std::array<std::byte, 256> receive{};
};

// Operation 0 is equal on all ranks; operation 1 is `usual` on all ranks but the last.
std::vector<std::string> run_misuse(const LoopbackWorld& world, std::int32_t ranks,
                                    const std::function<Start(Buffer&)>& usual,
                                    const std::function<Start(Buffer&)>& odd) {
  return on_every_rank(world, ranks, [&](Communicator& c) -> std::string {
    Buffer buffer;
    Status status = finish(c, c.start_broadcast(Bytes(buffer.send).first(8), RankId(0)), patient());
    if (!status.ok()) return "operation 0 failed: " + status.text();
    const bool is_odd = c.rank().value() == ranks - 1;
    status = finish(c, is_odd ? odd(buffer)(c) : usual(buffer)(c), patient());
    return status.text();
  });
}

Start broadcast(Buffer& b, std::size_t bytes, std::int32_t root) {
  return [&b, bytes, root](Communicator& c) {
    return c.start_broadcast(Bytes(b.send).first(bytes), RankId(root));
  };
}
Start gather(Buffer& b, std::size_t bytes) {
  return [&b, bytes](Communicator& c) {
    const auto ranks = static_cast<std::size_t>(c.size());
    return c.start_gather(ConstBytes(b.send).first(bytes), Bytes(b.receive).first(bytes * ranks),
                          RankId(0));
  };
}
Start all_reduce(Buffer& b, std::size_t bytes, const Reduction& reduction) {
  return [&b, bytes, reduction](Communicator& c) {
    return c.start_all_reduce(Bytes(b.send).first(bytes), reduction);
  };
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_SUITE_BEGIN("loopback rules");

TEST_CASE("a different call on one rank fails on every rank and says what each started") {
  struct Row {
    const char* misuse;
    std::function<Start(Buffer&)> usual, odd;
    const char* usual_text;
    const char* odd_text;
  };
  const std::array<Row, 4> rows = {
      Row{"kind", [](Buffer& b) { return gather(b, 16); },
          [](Buffer& b) { return broadcast(b, 16, 0); }, "started gather of 16 bytes with root 0",
          "rank 3 started broadcast of 16 bytes with root 0"},
      Row{"byte count", [](Buffer& b) { return broadcast(b, 16, 0); },
          [](Buffer& b) { return broadcast(b, 17, 0); }, "started broadcast of 16 bytes",
          "rank 3 started broadcast of 17 bytes"},
      Row{"root", [](Buffer& b) { return broadcast(b, 16, 0); },
          [](Buffer& b) { return broadcast(b, 16, 1); }, "with root 0",
          "rank 3 started broadcast of 16 bytes with root 1"},
      Row{"element size", [](Buffer& b) { return all_reduce(b, 16, sum_f32()); },
          [](Buffer& b) { return all_reduce(b, 16, sum_f64()); }, "(elements of 4)",
          "rank 3 started all_reduce of 16 bytes (elements of 8)"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.misuse);
    const LoopbackWorld world(4);
    const auto results = run_misuse(world, 4, row.usual, row.odd);
    for (const std::string& text : results) {
      CHECK(contains(text, "failed_precondition: operation 1 on communicator world"));
      CHECK(contains(text, row.odd_text));
      CHECK(text == results[0]);
    }
    CHECK(contains(results[0], row.usual_text));
  }
}

TEST_CASE("a different order of two operations is found at the first of them") {
  const LoopbackWorld world(2);
  const auto results = on_every_rank(world, 2, [](Communicator& c) -> std::string {
    Buffer b;
    const bool first = c.rank() == RankId(0);
    Result<Request> one = first ? gather(b, 8)(c) : all_reduce(b, 8, sum_f64())(c);
    return finish(c, std::move(one), patient()).text();
  });
  for (const std::string& text : results)
    CHECK(contains(text, "operation 0 on communicator world"));
}

TEST_CASE("a broken communicator stays broken, others do not") {
  const LoopbackWorld world(2);
  const auto results = on_every_rank(world, 2, [](Communicator& c) -> std::string {
    auto other = c.duplicate();
    if (!other.ok()) return other.status().text();
    Buffer b;
    const std::size_t bytes = c.rank() == RankId(0) ? 8 : 16;
    if (finish(c, broadcast(b, bytes, 0)(c), patient()).ok()) return "the misuse was accepted";
    if (finish(c, broadcast(b, 8, 0)(c), patient()).ok()) return "it healed";
    return finish(**other, broadcast(b, 8, 0)(**other), patient()).ok() ? "" : "the other broke";
  });
  for (const std::string& text : results) CHECK(text == "");
}

TEST_CASE("changing a buffer in flight fails on the rank that did it") {
  const LoopbackWorld world(2);
  const auto first = world.communicator(RankId(0));
  const auto second = world.communicator(RankId(1));
  std::array<std::byte, 8> mine{}, theirs{};
  Result<Request> a = first->start_all_reduce(mine, sum_u64());
  Result<Request> b = second->start_all_reduce(theirs, sum_u64());
  mine[3] = std::byte{1};
  const Result<Progress> changed = first->test(*a);
  CHECK(contains(changed.status().message(), "rank 0 changed the buffer while it was in flight"));
  CHECK(*second->test(*b) == Progress::done);
}

TEST_CASE("a rank that does not come leaves the others waiting, and a timeout says for what") {
  const LoopbackWorld world(2);
  const auto first = world.communicator(RankId(0));
  std::array<std::byte, 8> buffer{};
  Result<Request> request = first->start_all_reduce(buffer, sum_u64());
  const WaitPolicy policy = with_timeout({}, std::chrono::milliseconds(20), "rank 1's vote");
  const Status status = wait(*first, *request, policy);
  CHECK(status.code() == StatusCode::unavailable);
  CHECK(contains(status.message(), "for rank 1's vote"));
  CHECK(request->active());
}

TEST_CASE("requests left in flight and operations left alone are reported") {
  const LoopbackWorld world(2);
  {
    const auto first = world.communicator(RankId(0));
    const auto second = world.communicator(RankId(1));
    std::array<std::byte, 8> buffer{};
    CHECK(first->start_all_reduce(buffer, sum_u64()).ok());
    CHECK(world.verify() == ok_status());
  }
  const std::string text = world.verify().message();
  CHECK(contains(text, "rank 0 destroyed communicator world with operation 0 (all_reduce of 8"));
  CHECK(contains(text, "ended with operation 0 started by some ranks only"));
  CHECK(contains(text, "rank 1 has not started it"));
}

TEST_CASE("a split that one rank does not join fails instead of hanging") {
  LoopbackOptions options;
  options.start_up_timeout = std::chrono::milliseconds(20);
  const LoopbackWorld world(2, options);
  const auto first = world.communicator(RankId(0));
  const auto part = first->split(0);
  CHECK(part.status().code() == StatusCode::unavailable);
  CHECK(contains(part.status().message(), "split on communicator world"));
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::testing
