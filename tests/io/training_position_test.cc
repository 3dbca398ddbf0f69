#include "coordinator/io/training_position.h"

#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include <doctest/doctest.h>

namespace {

using namespace cox;
using namespace cox::io;

TrainingPosition position() {
  TrainingPosition p{.step = 3, .cursor = 24, .seed = 7, .samples = 4096};
  p.skipped = 1;
  p.rollbacks = 2;
  p.scaler = ScalerState{65536, 41, 2, 3.7f, 1e-30f, 5};
  return p;
}

// Returns the error for a position with one changed field; nullopt removes the field.
std::string complaint(const std::string& field, const std::optional<std::string>& value) {
  Metadata metadata = describe(position());
  metadata.erase("coxswain." + field);
  if (value) metadata["coxswain." + field] = *value;
  return read_position(metadata).status().message();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_SUITE("io.training_position") {
  TEST_CASE("a position comes back as it was described") {
    TrainingPosition wrote = position();
    wrote.data_hash = ~std::uint64_t{0};
    const auto read = read_position(describe(wrote));
    REQUIRE(read.ok());
    CHECK(describe(*read) == describe(wrote));
    CHECK(read->cursor == 24);
    CHECK(read->seed == 7);
    CHECK(*read->scaler == *wrote.scaler);
  }

  TEST_CASE("a save of an earlier version, without seed and size of the data, can still be read") {
    Metadata metadata = describe(position());
    CHECK(metadata.erase("coxswain.seed") == 1);
    CHECK(metadata.erase("coxswain.samples") == 1);
    const auto read = read_position(metadata);
    REQUIRE(read.ok());
    CHECK(read->cursor == 24);
    CHECK_FALSE(read->seed.has_value());
    CHECK(read->samples == 0);
  }

  TEST_CASE("a field of a loss scaler that is missing or no number of its kind is named") {
    const auto refused = [&](const std::string& field, const std::optional<std::string>& value) {
      CAPTURE(field);
      CAPTURE(value.value_or("none"));
      const std::string key = "loss_scale_" + field;
      CHECK(has(complaint(key, value), field == "bits" ? "loss" : key));
    };
    for (const char* value : {"", "much", "-1", "99999999999"}) refused("bits", value);
    for (const float value : {0.0f, -1024.0f, std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity()}) {
      refused("bits", std::to_string(std::bit_cast<std::uint32_t>(value)));
    }
    for (const char* field :
         {"clean_steps", "overflow_streak", "peak_bits", "former_peak_bits", "strikes"}) {
      for (const std::optional<std::string>& value :
           {std::optional<std::string>(), std::optional<std::string>("-1"),
            std::optional<std::string>("many")}) {
        refused(field, value);
      }
    }
  }

  TEST_CASE("a count that no run reaches is refused by name, and the largest that one may is not") {
    for (const char* field : {"step", "cursor", "samples", "skipped", "rollbacks"}) {
      CAPTURE(field);
      for (const char* value :
           {"18446744073709551611", "9223372036854775808", "9007199254740993", "-1", "1.5", ""})
        CHECK(has(complaint(field, value), std::string("coxswain.") + field));
    }
    CHECK(complaint("cursor", "9007199254740992").empty());
    CHECK(complaint("rollbacks", "9007199254740992").empty());
    CHECK(complaint("seed", "18446744073709551615").empty());
  }

  TEST_CASE("counts that cannot be together are refused") {
    CHECK(has(complaint("skipped", "4"), "4 skipped of 3"));
    CHECK(has(complaint("cursor", "2"), "2 samples in 3 steps"));
    Metadata without_data = describe(position());
    without_data["coxswain.cursor"] = "0";
    without_data["coxswain.samples"] = "0";
    CHECK(read_position(without_data).ok());
  }

  TEST_CASE("a file is of the step that it says, and of any where it says none") {
    CHECK(check_place({}, 3).ok());
    CHECK(check_place(describe_step(3), 3).ok());
    CHECK(check_place(describe(position()), 3).ok());
    CHECK(has(check_place(describe_step(3), 4).message(), "expected tensors of step 4, found"));
    CHECK(check_place({{"coxswain.step", "many"}}, 3).code() == StatusCode::data_loss);
    Metadata damaged = describe(position());
    damaged["coxswain.cursor"] = "18446744073709551611";
    CHECK(has(check_place(damaged, 3).message(), "coxswain.cursor"));
  }
}

}  // namespace
