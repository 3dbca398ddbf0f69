#include "coxswain/safetensors.h"

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sdk/temp_folder.h"
#include "tests/support/small_files_only.h"

#include <doctest/doctest.h>

namespace {

using cox::NamedTensor;
using namespace std::string_view_literals;

// Written by Python's safetensors 0.8.0.
constexpr std::string_view kGolden =
    "\x10\x01\0\0\0\0\0\0"
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"step\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]},"
    "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,5],\"data_offsets\":[24,24]},"
    "\"a.flag\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[24,27]}}"
    "\xf9\xff\xff\xff\xff\xff\xff\xff"
    "\0\0\x80\x3f\0\0\0\xc0\0\0\0\x3f\0\0\x80\x40"
    "\x01\0\x01"sv;

std::vector<NamedTensor> golden_tensors() {
  return {{"b.weight", torch::tensor({{1.0F, -2.0F}, {0.5F, 4.0F}})},
          {"empty", torch::empty({0, 5}, torch::kHalf)},
          {"a.flag", torch::tensor({true, false, true})},
          {"step", torch::tensor(-7, torch::kLong)}};
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.contiguous().view(torch::kUInt8).equal(b.contiguous().view(torch::kUInt8));
}

TEST_SUITE("sdk.checkpoint") {
  TEST_CASE("a file written by Python's safetensors is read") {
    const TempFolder folder;
    const auto file = cox::read_safetensors(folder.write("golden", kGolden));
    REQUIRE_MESSAGE(file.ok(), file.status().text());
    CHECK(file->metadata == std::map<std::string, std::string>{{"format", "pt"}});
    REQUIRE(file->tensors.size() == 4);
    CHECK(file->tensors[0].name == "a.flag");
    CHECK(file->tensors[0].tensor.equal(golden_tensors()[2].tensor));
    CHECK(file->tensors[1].tensor.equal(golden_tensors()[0].tensor));
    CHECK(file->tensors[2].tensor.equal(golden_tensors()[1].tensor));
    CHECK(file->tensors[3].tensor.equal(golden_tensors()[3].tensor));
  }

  TEST_CASE(
      "the writer gives the bytes that Python's safetensors gives, in whatever order it is asked") {
    const TempFolder folder;
    std::vector<NamedTensor> tensors = golden_tensors();
    for (int turn = 0; turn < 4; ++turn) {
      REQUIRE(cox::write_safetensors(folder / "f", tensors, {{"format", "pt"}}).ok());
      CHECK(read_bytes(folder / "f") == kGolden);
      std::rotate(tensors.begin(), tensors.begin() + 1, tensors.end());
    }
    CHECK(folder.files() == 1);
  }

  TEST_CASE("every dtype survives a round trip bit for bit") {
    const TempFolder folder;
    torch::manual_seed(3);
    std::vector<NamedTensor> tensors;
    for (const auto type :
         {torch::kDouble, torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kFloat8_e4m3fn,
          torch::kFloat8_e5m2, torch::kLong, torch::kInt, torch::kShort, torch::kChar, torch::kByte,
          torch::kUInt16, torch::kUInt32, torch::kUInt64}) {
      const at::Tensor bytes = torch::randint(0, 256, {3, 8 * 5}, torch::kUInt8);
      tensors.push_back({c10::toString(type), bytes.view(type)});
    }
    tensors.push_back({"bool", torch::rand({7}) > 0.5});
    REQUIRE(cox::write_safetensors(folder / "f", tensors).ok());
    const auto file = cox::read_safetensors(folder / "f");
    REQUIRE_MESSAGE(file.ok(), file.status().text());
    CHECK(file->metadata.empty());
    for (const NamedTensor& read : file->tensors) {
      for (const NamedTensor& wrote : tensors) {
        if (wrote.name == read.name) CHECK_MESSAGE(same(wrote.tensor, read.tensor), read.name);
      }
    }
    CHECK(file->tensors.size() == tensors.size());
  }

  TEST_CASE("strided and grad-requiring tensors are stored as their values") {
    const TempFolder folder;
    const at::Tensor base = torch::arange(24, torch::kFloat).reshape({4, 6});
    const at::Tensor parameter = base.clone().set_requires_grad(true);
    const std::vector<NamedTensor> tensors = {
        {"transposed", base.t()}, {"slice", base.slice(1, 1, 6, 2)}, {"parameter", parameter}};
    REQUIRE(cox::write_safetensors(folder / "f", tensors).ok());
    const auto file = cox::read_safetensors(folder / "f");
    REQUIRE(file.ok());
    CHECK(file->tensors[0].tensor.equal(base));
    CHECK_FALSE(file->tensors[0].tensor.requires_grad());
    CHECK(file->tensors[1].tensor.equal(base.slice(1, 1, 6, 2)));
    CHECK(file->tensors[2].tensor.equal(base.t()));
  }

  TEST_CASE("names and metadata may hold any text") {
    const TempFolder folder;
    const std::string text = "\"\\ \xc3\xa9\n\x01";
    const std::vector<NamedTensor> tensors = {{text, torch::ones({1})}};
    REQUIRE(cox::write_safetensors(folder / "f", tensors, {{text, text}}).ok());
    const auto file = cox::read_safetensors(folder / "f");
    REQUIRE_MESSAGE(file.ok(), file.status().text());
    CHECK(file->tensors[0].name == text);
    CHECK(file->metadata.at(text) == text);
  }

  TEST_CASE("complex numbers come back, also where they are a conjugate that nobody computed yet") {
    const TempFolder folder;
    const std::vector<NamedTensor> tensors = {
        {"double", torch::randn({3, 2}, torch::kComplexDouble).conj()},
        {"empty", torch::empty({0}, torch::kComplexDouble)},
        {"float", torch::randn({2, 5}, torch::kComplexFloat).conj()},
        {"scalar", torch::randn({}, torch::kComplexDouble)}};
    REQUIRE(cox::write_safetensors(folder / "f", tensors).ok());
    const auto file = cox::read_safetensors(folder / "f");
    REQUIRE_MESSAGE(file.ok(), file.status().text());
    REQUIRE(file->tensors.size() == tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      CHECK((file->tensors[i].tensor.scalar_type() == tensors[i].tensor.scalar_type()));
      CHECK(torch::equal(file->tensors[i].tensor, tensors[i].tensor));
    }
    CHECK(read_bytes(folder / "f").find("\"C64\"") != std::string::npos);
    const std::vector<NamedTensor> other = {{"a", torch::ones({3}, torch::kDouble)}};
    REQUIRE(cox::write_safetensors(folder / "g", other, {{"coxswain.complex.a", "F64"}}).ok());
    CHECK(cox::read_safetensors(folder / "g").status().code() == cox::StatusCode::data_loss);
  }

  TEST_CASE("a file that is divided is read by the name of the whole") {
    const TempFolder folder;
    const std::vector<NamedTensor> one = {{"b", torch::ones({2})}};
    const std::vector<NamedTensor> two = {{"a", torch::zeros({3})}};
    REQUIRE(cox::write_safetensors(folder / "m-00001-of-00002.safetensors", one,
                                   {{"coxswain.tied.c", "a"}})
                .ok());
    CHECK(cox::read_safetensors(folder / "m.safetensors").status().message().find("found 1") !=
          std::string::npos);
    REQUIRE(cox::write_safetensors(folder / "m-00002-of-00002.safetensors", two).ok());
    const auto file = cox::read_safetensors(folder / "m.safetensors");
    REQUIRE_MESSAGE(file.ok(), file.status().text());
    REQUIRE(file->tensors.size() == 3);
    CHECK(file->tensors[0].name == "a");
    CHECK(torch::equal(file->tensors[2].tensor, two[0].tensor));  // "c"
    REQUIRE(cox::write_safetensors(folder / "m-00002-of-00002.safetensors", one).ok());
    CHECK(cox::read_safetensors(folder / "m.safetensors").status().code() ==
          cox::StatusCode::data_loss);
  }

  TEST_CASE("a list that cannot be a file is refused before anything is written") {
    const TempFolder folder;
    const at::Tensor one = torch::ones({1});
    const std::vector<std::vector<NamedTensor>> lists = {
        {{"a", one}, {"a", one}},
        {{"__metadata__", one}},
        {{"\xff", one}},
        {{"a", at::Tensor()}},
        {{"a", torch::ones({1}, torch::kComplexHalf)}},
        {{"a", torch::ones({2, 2}).to_sparse()}},
    };
    for (const auto& list : lists) {
      const cox::Status status = cox::write_safetensors(folder / "f", list);
      CHECK(status.code() == cox::StatusCode::invalid_argument);
    }
    const cox::Status status = cox::write_safetensors(folder / "f", {}, {{"k", "\xff"}});
    CHECK(status.code() == cox::StatusCode::invalid_argument);
    CHECK(folder.files() == 0);
  }

  TEST_CASE("a folder that is not there, or is the target, is an error") {
    const TempFolder folder;
    const std::vector<NamedTensor> tensors = golden_tensors();
    CHECK(cox::write_safetensors(folder / "none/f", tensors).code() == cox::StatusCode::not_found);
    std::filesystem::create_directory(folder / "taken");
    CHECK_FALSE(cox::write_safetensors(folder / "taken", tensors).ok());
    CHECK(folder.files() == 1);
    CHECK(cox::read_safetensors(folder / "none").status().code() == cox::StatusCode::not_found);
    CHECK(cox::read_safetensors(folder / "taken").status().code() ==
          cox::StatusCode::failed_precondition);
  }

  TEST_CASE("when the disk is full the previous file survives and nothing else is left") {
    const TempFolder folder;
    REQUIRE(cox::write_safetensors(folder / "f", golden_tensors(), {{"format", "pt"}}).ok());
    const std::vector<NamedTensor> large = {{"large", torch::ones({4096})}};
    const cox::Status status = [&] {
      const SmallFilesOnly full(4096);
      return cox::write_safetensors(folder / "f", large);
    }();
    CHECK(status.code() == cox::StatusCode::resource_exhausted);
    CHECK(status.message().find((folder / "f").string()) != std::string::npos);
    CHECK(read_bytes(folder / "f") == kGolden);
    CHECK(folder.files() == 1);
  }
}

}  // namespace
