// Agreements with arbitrary bytes from another rank: errors, and no read beyond the bytes.
#include <algorithm>
#include <random>
#include <string>

#include "sdk/src/parallel/agreement.h"

#include <doctest/doctest.h>

namespace cox::detail {
namespace {

using transport::Buffers;
using transport::Call;
using transport::Communicator;
using transport::Operation;
using transport::Request;

// Rank 0 of two; the other rank's data is drawn at random.
class HostileRank final : public Communicator {
 public:
  explicit HostileRank(unsigned seed) : random_(seed) {}
  RankId rank() const override { return RankId(0); }
  std::int32_t size() const override { return 2; }
  std::int32_t ranks_on_node() const override { return 2; }
  const char* kind() const override { return "hostile"; }
  Result<transport::Progress> test(Request& request) override {
    request = Request{};
    return transport::Progress::done;
  }
  Result<std::unique_ptr<Communicator>> duplicate() override { return unavailable("alone"); }
  Result<std::unique_ptr<Communicator>> split_by_node() override { return unavailable("alone"); }

 private:
  Result<Request> start(const Call& call, const Buffers& buffers,
                        const transport::Reduction&) override {
    if (call.operation == Operation::all_gather || call.operation == Operation::gather) {
      std::ranges::copy(buffers.send, buffers.receive.begin());
      // Without a zero byte, no text has an end.
      const auto other = buffers.receive.subspan(buffers.send.size());
      std::ranges::generate(other, [this] { return static_cast<std::byte>(1 + random_() % 255); });
    }
    return Request{0, 0};
  }
  Result<std::unique_ptr<Communicator>> part(std::int32_t) override { return unavailable("alone"); }
  Result<transport::SharedSegment> share(std::size_t) override { return unavailable("alone"); }

  std::mt19937 random_;
};

TEST_SUITE_BEGIN("hostile ranks");

TEST_CASE("a verdict of any code and without an end is an error with a text") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    HostileRank ranks(seed);
    const Status status = agree_on_status(ranks, ok_status());
    REQUIRE_FALSE(status.ok());
    REQUIRE(status.text().size() < 1200);
    REQUIRE(status.message().find("rank 1: ") == 0);
  }
}

TEST_CASE("a text without an end is read as far as its field goes") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    HostileRank ranks(seed);
    REQUIRE(first_text(ranks, "").size() < 1200);
  }
}

TEST_CASE("rows of an impossible length are refused") {
  HostileRank ranks(1);
  const auto rows = gather_rows(ranks, std::vector<std::uint64_t>{1, 2, 3}, "the test's rows");
  CHECK(rows.status().code() == StatusCode::data_loss);
}

TEST_CASE("a mark of a call of any kind has a text") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    HostileRank ranks(seed);
    const auto matched = match_calls(ranks, CallMark{}, ArrivalStamp{}, [] {});
    REQUIRE(matched.status().code() == StatusCode::invalid_argument);
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::detail
