#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "coxswain/safetensors.h"
#include "tests/sdk/checkpoint/counting_heap.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

std::string file_of(const std::string& json, std::size_t data_bytes) {
  const std::uint64_t length = json.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + json + std::string(data_bytes, '\x01');
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& range) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + range + "}";
}

struct Hostile {
  std::string json;
  std::size_t data_bytes;
  std::string complaint;
};

std::vector<Hostile> hostile_headers() {
  const std::string f32 = entry("F32", "[1]", "[0,4]");
  return {
      {"", 0, "starts with '{'"},
      {"[]", 0, "starts with '{'"},
      {" {}", 0, "starts with '{'"},
      {"{} x", 0, "expected end of input"},
      {"{\"a\":" + f32 + ",\"a\":" + f32 + "}", 4, "\"a\" occurs twice"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
       "\"dtype\" occurs twice"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "one of them missing"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
       "found \"x\""},
      {"{\"a\":" + entry("F99", "[1]", "[0,4]") + "}", 4, "found \"F99\""},
      {"{\"a\":" + entry("F32", "[-1]", "[0,4]") + "}", 4, "whole number"},
      {"{\"a\":" + entry("F32", "[1.0]", "[0,4]") + "}", 4, "whole number"},
      {"{\"a\":" + entry("F32", "1", "[0,4]") + "}", 4, "expected an array"},
      {"{\"a\":" + entry("F32", "[4294967296,4294967296]", "[0,4]") + "}", 4, "2^63"},
      {"{\"a\":" + entry("F32", "[18446744073709551615]", "[0,4]") + "}", 4, "below 2^63"},
      {"{\"a\":" + entry("F32", "[99999999999999999999]", "[0,4]") + "}", 4, "below 2^63"},
      {"{\"a\":" + entry("F32", "[2]", "[0,4]") + "}", 4, "expected 8 bytes"},
      {"{\"a\":" + entry("F32", "[1]", "[4,0]") + "}", 4, "expected 4 bytes"},
      {"{\"a\":" + entry("F32", "[1]", "[0]") + "}", 4, "expected 2 numbers, found 1"},
      {"{\"a\":" + entry("F32", "[1]", "[0,4,8]") + "}", 4, "expected 2 numbers, found 3"},
      {"{\"a\":" + f32 + "}", 3, "cut short"},
      {"{\"a\":" + f32 + "}", 5, "surplus"},
      {"{\"a\":" + entry("F32", "[1]", "[4,8]") + "}", 8, "a gap"},
      {"{\"a\":" + f32 + ",\"b\":" + f32 + "}", 4, "an overlap"},
      {"{\"a\":" + entry("U8", "[1]", "[0,1]") + ",\"b\":" + entry("F32", "[1]", "[1,5]") + "}", 5,
       "multiple of 4"},
      {"{\"a\":" + entry("F32", "[1000000000000]", "[0,4000000000000]") + "}", 4, "cut short"},
      {"{\"\xff\":" + f32 + "}", 4, "ill-formed UTF-8"},
      {"{\"__metadata__\":{\"a\":1},\"a\":" + f32 + "}", 4, "expected a text"},
      {"{\"__metadata__\":{\"a\":\"\",\"a\":\"\"},\"a\":" + f32 + "}", 4, "occurs twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "occurs twice"},
      {"{\"a\":" + entry("F32", "[" + std::string(200000, '[') + "]", "[0,4]") + "}", 4,
       "expected"},
      {"{\"a\":" + entry("BOOL", "[1]", "[0,1]") + ",\"b\":" + entry("U8", "[2]", "[0,1]") + "}", 1,
       "expected 2 bytes"},
  };
}

TEST_SUITE("sdk.checkpoint") {
  TEST_CASE("each damaged header is refused with the file and what is wrong in it") {
    const TempFolder folder;
    for (const Hostile& hostile : hostile_headers()) {
      CAPTURE(hostile.json.substr(0, 200));
      const auto path = folder.write("hostile", file_of(hostile.json, hostile.data_bytes));
      const auto file = cox::read_safetensors(path);
      REQUIRE_FALSE(file.ok());
      CHECK(file.status().code() == cox::StatusCode::data_loss);
      CHECK_MESSAGE(file.status().message().find(hostile.complaint) != std::string::npos,
                    file.status().text());
      CHECK(file.status().message().find(path.string()) != std::string::npos);
      CHECK(file.status().message().size() < 1000);
    }
  }

  TEST_CASE("too many dimensions and values that are no bool are refused") {
    const TempFolder folder;
    std::string ones = "1";
    for (int i = 0; i < 64; ++i) ones += ",1";
    auto path =
        folder.write("f", file_of("{\"a\":" + entry("U8", "[" + ones + "]", "[0,1]") + "}", 1));
    CHECK_FALSE(cox::read_safetensors(path).ok());
    std::string bools = file_of("{\"a\":" + entry("BOOL", "[2]", "[0,2]") + "}", 2);
    CHECK(cox::read_safetensors(folder.write("f", bools)).ok());
    bools.back() = '\x02';
    CHECK_FALSE(cox::read_safetensors(folder.write("f", bools)).ok());
  }

  TEST_CASE("a header length beyond the cap or the file claims no memory") {
    const TempFolder folder;
    const std::string json = "{\"a\":" + entry("F32", "[1]", "[0,4]") + "}";
    for (const std::uint64_t length : {std::uint64_t{99'999'999}, std::uint64_t{100'000'001},
                                       std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
      std::string bytes = file_of(json, 4);
      std::memcpy(bytes.data(), &length, 8);
      const auto path = folder.write("f", bytes);
      forget_largest_request();
      CHECK(cox::read_safetensors(path).status().code() == cox::StatusCode::data_loss);
      CHECK(largest_request_bytes() < 10'000);
    }
  }

  TEST_CASE("a file cut at any byte is refused") {
    const TempFolder folder;
    const std::vector<cox::NamedTensor> tensors = {{"a", torch::ones({3})},
                                                   {"b", torch::ones({2, 2}, torch::kByte)}};
    REQUIRE(cox::write_safetensors(folder / "whole", tensors).ok());
    const std::string whole = read_bytes(folder / "whole");
    for (std::size_t size = 0; size < whole.size(); ++size) {
      CAPTURE(size);
      const auto file = cox::read_safetensors(folder.write("cut", whole.substr(0, size)));
      CHECK(file.status().code() == cox::StatusCode::data_loss);
    }
  }

  // Returns a valid file with a few bytes changed, removed or doubled.
  std::string mutated(const std::string& valid, std::mt19937& random) {
    static constexpr std::string_view kDigits = "0123456789[]{},:\"-";
    std::string bytes = valid;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0 && !bytes.empty(); --edits) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = kDigits[random() % kDigits.size()];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        default:
          bytes.insert(at, bytes.substr(at, 1 + random() % 8));
      }
    }
    return bytes;
  }

  TEST_CASE("mutated files never crash and never claim more memory than they have bytes") {
    const TempFolder folder;
    const std::vector<cox::NamedTensor> tensors = {{"a.weight", torch::ones({3, 5})},
                                                   {"a.bias", torch::ones({5}, torch::kHalf)},
                                                   {"flag", torch::ones({3}, torch::kBool)},
                                                   {"step", torch::ones({}, torch::kLong)}};
    REQUIRE(cox::write_safetensors(folder / "whole", tensors, {{"format", "pt"}}).ok());
    const std::string whole = read_bytes(folder / "whole");
    std::mt19937 random(2026);
    int accepted = 0;
    for (int round = 0; round < 5000; ++round) {
      const std::string bytes = mutated(whole, random);
      const auto path = folder.write("mutated", bytes);
      forget_largest_request();
      const auto file = cox::read_safetensors(path);
      REQUIRE(largest_request_bytes() <= 4 * bytes.size() + 4096);
      if (!file.ok()) continue;
      ++accepted;
      std::size_t data = 0;
      for (const auto& named : file->tensors) data += named.tensor.nbytes();
      REQUIRE(data < bytes.size());
    }
    CHECK(accepted > 0);  // no reader can detect changes inside the data
    CHECK(accepted < 4000);
  }
}

}  // namespace
