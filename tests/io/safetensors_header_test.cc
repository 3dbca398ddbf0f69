#include "coordinator/io/safetensors_header.h"

#include <string>

#include <doctest/doctest.h>

namespace cox::io {
namespace {

// Returns a header of `count` tensors without elements, the most that its bytes can hold.
std::string empty_tensors(std::size_t count) {
  std::string json = "{";
  for (std::size_t i = 0; i < count; ++i) {
    json += (i > 0 ? ",\"" : "\"") + std::to_string(i) +
            R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  return json + "}";
}

TEST_SUITE("io.safetensors_header") {
  TEST_CASE("as many tensors as the limit are read, and one more is refused") {
    const auto most = parse_safetensors_header(empty_tensors(kMaxSafetensorsTensors), 0);
    REQUIRE_MESSAGE(most.ok(), most.status().text());
    CHECK(most->entries.size() == kMaxSafetensorsTensors);
    const auto more = parse_safetensors_header(empty_tensors(kMaxSafetensorsTensors + 1), 0);
    CHECK(more.status().code() == StatusCode::data_loss);
    CHECK(more.status().message().find("expected at most 262144 tensors in a file, found more") !=
          std::string::npos);
  }

  TEST_CASE("1.7 million empty tensors are refused by the length of their header alone") {
    const std::uint64_t header_bytes = 96'000'000;
    const Status status = check_safetensors_length(header_bytes, header_bytes + 8);
    CHECK(status.code() == StatusCode::data_loss);
    CHECK(status.message() ==
          "expected a header of at most 33554432 bytes, found a length of 96000000");
    CHECK(
        check_safetensors_length(kMaxSafetensorsHeaderBytes, kMaxSafetensorsHeaderBytes + 8).ok());
  }

  TEST_CASE("a header is read again as it was written") {
    SafetensorsHeader header;
    header.entries = {{.name = "a", .dtype = "F32", .shape = {2, 3}, .begin = 0, .end = 24},
                      {.name = "b", .dtype = "BF16", .shape = {}, .begin = 24, .end = 26}};
    header.metadata = {{"format", "pt"}};
    const std::string json = format_safetensors_header(header);
    CHECK(json.size() % 8 == 0);
    const auto read = parse_safetensors_header(json, 26);
    REQUIRE_MESSAGE(read.ok(), read.status().text());
    CHECK(read->metadata == header.metadata);
    REQUIRE(read->entries.size() == 2);
    CHECK(read->entries[0].shape == header.entries[0].shape);
    CHECK(read->entries[1].dtype == "BF16");
    CHECK(parse_safetensors_header(json, 25).status().code() == StatusCode::data_loss);
  }
}

}  // namespace
}  // namespace cox::io
