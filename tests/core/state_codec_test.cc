#include "coordinator/core/state_codec.h"

#include <cmath>
#include <string>

#include "coordinator/core/columns.h"
#include "coordinator/decide/policy.h"
#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

enum class Stage : std::uint8_t { watch = 0, hold = 1, roll_back = 2 };

}  // namespace

template <>
inline constexpr Stage cox::kLargestOf<Stage> = Stage::roll_back;

namespace {

using cox::decode_state;
using cox::encode_state;
using cox::PolicyState;

struct Range {
  std::uint16_t first = 0;
  std::optional<std::int64_t> change;
  static auto fields(auto& self) {
    return cox::message("Range", cox::field(1, "first", self.first),
                        cox::field(2, "change", self.change));
  }
  friend bool operator==(const Range&, const Range&) = default;
};

struct AsColumns {
  static constexpr std::uint32_t kVersion = 1;
  cox::Columns<2> table;
  static auto fields(auto& self) {
    return cox::message("AsColumns", cox::field(1, "table", self.table));
  }
};

struct AsVectors {
  static constexpr std::uint32_t kVersion = 1;
  std::array<std::vector<double>, 2> table;
  static auto fields(auto& self) {
    return cox::message("AsVectors", cox::field(1, "table", self.table));
  }
};

struct Everything {
  static constexpr std::uint32_t kVersion = 3;
  bool told = false;
  std::uint64_t large = 0;
  std::int32_t negative = 0;
  float single = 0;
  double number = 0;
  Stage stage = Stage::watch;
  cox::RankId rank{};
  std::string name;
  std::array<std::uint8_t, 3> three{};
  std::vector<Range> ranges;
  static auto fields(auto& self) {
    return cox::message(
        "Everything", cox::field(1, "told", self.told), cox::field(2, "large", self.large),
        cox::field(3, "negative", self.negative), cox::field(4, "single", self.single),
        cox::field(5, "number", self.number), cox::field(6, "stage", self.stage),
        cox::field(7, "rank", self.rank), cox::field(8, "name", self.name),
        cox::field(9, "three", self.three), cox::field(10, "ranges", self.ranges));
  }
  friend bool operator==(const Everything&, const Everything&) = default;
};

struct Small {
  static constexpr std::uint32_t kVersion = 1;
  std::uint8_t value = 0;
  static auto fields(auto& self) {
    return cox::message("Small", cox::field(1, "value", self.value));
  }
};

struct Flag {
  static constexpr std::uint32_t kVersion = 1;
  Stage stage = Stage::watch;
  bool told = false;
  static auto fields(auto& self) {
    return cox::message("Flag", cox::field(1, "stage", self.stage),
                        cox::field(2, "told", self.told));
  }
};

struct Eager {
  static constexpr std::uint32_t kVersion = 1;
  double ratio = 1;
  cox::RankId rank{-1};
  std::array<std::int32_t, 2> pair = {3, 4};
  static auto fields(auto& self) {
    return cox::message("Eager", cox::field(1, "ratio", self.ratio),
                        cox::field(2, "rank", self.rank), cox::field(3, "pair", self.pair));
  }
};

struct Wide {
  static constexpr std::uint32_t kVersion = 1;
  std::vector<std::array<std::uint64_t, 64>> rows;
  static auto fields(auto& self) { return cox::message("Wide", cox::field(1, "rows", self.rows)); }
};

// The field of version 1, behind all others.
const std::string kVersion1 = "\xc0\x3e\x01";

Everything filled() {
  Everything state;
  state.told = true;
  state.large = ~0ull;
  state.negative = -2147483647 - 1;
  state.single = -0.0f;
  state.number = 1e-310;
  state.stage = Stage::roll_back;
  state.rank = cox::RankId(-1);
  state.name = std::string("a\0b", 3);
  state.three = {1, 2, 255};
  state.ranges = {{7, std::nullopt}, {65535, -9}};
  return state;
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("a state is the same after encoding and decoding, bit by bit") {
    const Everything state = filled();
    const auto read = decode_state<Everything>(encode_state(state));
    REQUIRE_MESSAGE(read.ok(), read.status().text());
    CHECK(*read == state);
    CHECK(std::signbit(read->single));
    Everything odd;
    odd.number = std::nan("7");
    const auto nan = decode_state<Everything>(encode_state(odd));
    REQUIRE(nan.ok());
    CHECK(encode_state(*nan) == encode_state(odd));
  }

  TEST_CASE("small numbers take a byte each") {
    CHECK(encode_state(Small{5}) == "\x08\x05" + kVersion1);
    CHECK(encode_state(Flag{Stage::hold, true}) == "\x08\x01\x10\x01" + kVersion1);
  }

  TEST_CASE("a state of another version is refused by version") {
    const auto read = decode_state<Small>(encode_state(filled()));
    REQUIRE_FALSE(read.ok());
    CHECK(read.status().text() == "failed_precondition: state: expected version 1, found 3");
  }

  TEST_CASE("values outside their type's range are refused") {
    CHECK(decode_state<Small>("\x08\xff\x01" + kVersion1).ok());
    CHECK_FALSE(decode_state<Small>("\x08\x80\x02" + kVersion1).ok());  // 256
    CHECK(decode_state<Flag>("\x08\x02\x10\x01" + kVersion1).ok());
    CHECK_FALSE(decode_state<Flag>("\x08\x03\x10\x01" + kVersion1).ok());
    CHECK_FALSE(decode_state<Flag>("\x08\x02\x10\x02" + kVersion1).ok());
    CHECK_FALSE(decode_state<Flag>("\x08\x02\x10\x01").ok());  // without a version
    CHECK_FALSE(decode_state<Flag>("\x08\x02\x10\x01" + kVersion1 + "\x01").ok());
    CHECK_FALSE(decode_state<Flag>("").ok());
  }

  TEST_CASE("fields come in any order, the last of several values counts, lists in any pieces") {
    CHECK(decode_state<Flag>("\x10\x01\x08\x02" + kVersion1)->stage == Stage::roll_back);
    CHECK(decode_state<Small>("\x08\x05\x08\x07" + kVersion1)->value == 7);
    const std::string version3 = "\xc0\x3e\x03";
    const auto three = [&](std::string_view bytes) {
      return decode_state<Everything>(std::string(bytes) + version3);
    };
    const std::array<std::uint8_t, 3> expected = {1, 2, 3};
    CHECK(three("\x4a\x03\x01\x02\x03")->three == expected);      // packed
    CHECK(three("\x48\x01\x48\x02\x48\x03")->three == expected);  // one by one
    CHECK(three("\x4a\x02\x01\x02\x48\x03")->three == expected);  // both
    CHECK_FALSE(three("\x4a\x02\x01\x02").ok());                  // too few
    CHECK_FALSE(three("\x4a\x03\x01\x02\x03\x48\x04").ok());      // too many
    CHECK(three("\x52\x02\x08\x07\x52\x02\x10\x01")->ranges ==
          std::vector<Range>{{7, std::nullopt}, {0, -1}});
  }

  TEST_CASE("unknown fields are skipped, known ones of another wire type and groups are refused") {
    const std::string small = "\x08\x05";
    for (const std::string& unknown :
         {std::string("\x28\x80\x01"), std::string("\x29") + "12345678",
          std::string("\x2a\x02") + "ab", std::string("\x2d") + "1234"}) {
      const auto read = decode_state<Small>(unknown + small + kVersion1);
      REQUIRE(read.ok());
      CHECK(read->value == 5);
    }
    for (const std::string& refused :
         {std::string("\x09") + "12345678", std::string("\x0a\x01\x05"),
          std::string("\x0d") + "1234", std::string("\x2b\x2c"), std::string("\x2e"),
          std::string("\x02\x01"), std::string("\x2a\x70")}) {
      CHECK_FALSE(decode_state<Small>(refused + small + kVersion1).ok());
    }
  }

  TEST_CASE("what bytes leave out is zero, whatever the struct begins with") {
    const auto read = decode_state<Eager>(kVersion1);
    REQUIRE(read.ok());
    CHECK(read->ratio == 0);
    CHECK(read->rank == cox::RankId(0));
    CHECK(read->pair == std::array<std::int32_t, 2>{0, 0});
    CHECK(decode_state<Eager>(encode_state(Eager{}))->rank == cox::RankId(-1));
  }

  TEST_CASE("a count allocates no more than the bytes that are left can hold") {
    // Claims 2^62 bytes of rows where three are left, then a row with too few numbers.
    CHECK_FALSE(
        decode_state<Wide>("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x3f\x01" + kVersion1).ok());
    CHECK_FALSE(decode_state<Wide>("\x0a\x04\x0a\x02\x01\x01" + kVersion1).ok());
  }

  TEST_CASE("empty messages are no more than a job can have ranks, within a list") {
    const auto with_rows = [](std::size_t rows) {
      std::string bytes;
      for (std::size_t i = 0; i < rows; ++i) bytes += std::string("\x52\x00", 2);
      return bytes + "\xc0\x3e\x03";
    };
    const auto read = decode_state<Everything>(with_rows(cox::kMaxRanks));
    REQUIRE(read.ok());
    CHECK(read->ranges.size() == cox::kMaxRanks);
    CHECK_FALSE(decode_state<Everything>(with_rows(cox::kMaxRanks + 1)).ok());
  }

  TEST_CASE("damaged bytes never crash, and what is read from them encodes to itself") {
    cox::testing::Random random(5);
    const std::string good = encode_state(filled());
    for (std::size_t cut = 0; cut < good.size(); ++cut) {
      CHECK_FALSE(decode_state<Everything>(good.substr(0, cut)).ok());
    }
    for (int i = 0; i < 20000; ++i) {
      std::string bytes = good;
      for (auto hits = 1 + random.below(4); hits > 0; --hits) {
        bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
      }
      const auto read = decode_state<Everything>(bytes);
      if (!read.ok()) continue;
      const auto again = decode_state<Everything>(encode_state(*read));
      REQUIRE(again.ok());
      CHECK(encode_state(*again) == encode_state(*read));
    }
  }

  TEST_CASE("a policy state gives its value back, as it is or from its bytes") {
    PolicyState state = PolicyState::of(filled());
    CHECK_FALSE(state.is_fresh());
    PolicyState restored = PolicyState::from_bytes(state.bytes());
    CHECK(restored == state);
    PolicyState copy = state;
    CHECK(copy.take_or_fresh<Everything>() == filled());
    CHECK(copy.is_fresh());
    CHECK(state.take_or_fresh<Everything>() == filled());
    CHECK(restored.take_or_fresh<Everything>() == filled());
    CHECK(restored.is_fresh());
  }

  TEST_CASE("a state that is fresh, of another type or damaged gives a fresh value") {
    CHECK(PolicyState().take_or_fresh<Everything>() == Everything{});
    CHECK(PolicyState().bytes().empty());
    CHECK(PolicyState::of(Small{3}).take_or_fresh<Everything>() == Everything{});
    CHECK(PolicyState::from_bytes("damaged").take_or_fresh<Everything>() == Everything{});
    CHECK(PolicyState::from_bytes("").is_fresh());
  }

  TEST_CASE("columns are stored as an array of vectors, and refused when these differ in size") {
    AsColumns columns{cox::Columns<2>(3)};
    for (int i = 0; i < 6; ++i) columns.table[i / 3][i % 3] = i + 0.5;
    const AsVectors vectors{{{{0.5, 1.5, 2.5}, {3.5, 4.5, 5.5}}}};
    CHECK(encode_state(columns) == encode_state(vectors));
    const auto read = decode_state<AsColumns>(encode_state(vectors));
    REQUIRE(read.ok());
    CHECK(read->table == columns.table);
    for (const AsVectors& uneven :
         {AsVectors{{{{1, 2}, {3}}}}, AsVectors{{{{}, {3}}}}, AsVectors{{{{1}, {}}}}}) {
      CHECK_FALSE(decode_state<AsColumns>(encode_state(uneven)).ok());
    }
    columns.table.keep_rows(2);
    CHECK(columns.table[1][1] == 4.5);
    CHECK(columns.table[0].size() == 2);
  }
}
