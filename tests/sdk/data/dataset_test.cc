#include "coxswain/dataset.h"

#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/error.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

std::string refusal(const std::filesystem::path& file, std::int64_t block) {
  try {
    const cox::ByteTextDataset text(file, block);
  } catch (const cox::Error& error) {
    CHECK_FALSE(error.status().ok());
    return error.what();
  }
  return "accepted";
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_SUITE("sdk.data") {
  TEST_CASE("a sample is a block of bytes and its target the same block one byte further") {
    const TempFolder folder;
    const cox::ByteTextDataset text(folder.write("text", "abcdefgh\xff"), 4);
    REQUIRE(text.size() == 2);
    const std::vector<std::int64_t> indices = {1, 0, 1};
    const cox::Batch batch = text.get(indices);
    CHECK(batch.samples == 3);
    const auto first = torch::tensor({'a', 'b', 'c', 'd'}, torch::kLong);
    CHECK(batch.inputs.sizes() == at::IntArrayRef{3, 4});
    CHECK((batch.inputs.scalar_type() == torch::kLong));
    CHECK(batch.inputs[1].equal(first));
    CHECK(batch.targets[1].equal(first + 1));
    CHECK(batch.inputs[0].equal(first + 4));
    CHECK(batch.targets[0].equal(torch::tensor({'f', 'g', 'h', 255}, torch::kLong)));
    CHECK(batch.inputs[2].equal(batch.inputs[0]));
  }

  TEST_CASE("the bytes behind the last whole block and target are not used") {
    const TempFolder folder;
    CHECK(cox::ByteTextDataset(folder.write("a", "12345"), 4).size() == 1);
    CHECK(cox::ByteTextDataset(folder.write("b", "12345678"), 4).size() == 1);
    CHECK(cox::ByteTextDataset(folder.write("c", "123456789"), 4).size() == 2);
  }

  TEST_CASE("a text that is cut while it is in use is an error of one line") {
    const TempFolder folder;
    const auto file = folder.write("text", std::string(1 << 16, 'a'));
    const cox::ByteTextDataset text(file, 64);
    const std::vector<std::int64_t> first = {0};
    const std::vector<std::int64_t> last = {1000};
    std::filesystem::resize_file(file, 100);
    CHECK(text.get(first).samples == 1);
    try {
      text.get(last);
      FAIL("a sample of bytes that are gone");
    } catch (const cox::Error& error) {
      CHECK(error.status().code() == cox::StatusCode::data_loss);
      CHECK(mentions(error.what(), file.string()));
      CHECK(mentions(error.what(), "cut while being read"));
      CHECK_FALSE(mentions(error.what(), "\n"));
    }
  }

  TEST_CASE("no indices give tensors without rows, and an index outside is refused") {
    const TempFolder folder;
    const cox::ByteTextDataset text(folder.write("text", "abcde"), 4);
    CHECK(text.get({}).inputs.sizes() == at::IntArrayRef{0, 4});
    CHECK(text.get({}).samples == 0);
    const std::vector<std::int64_t> after = {1};
    const std::vector<std::int64_t> before = {-1};
    CHECK_THROWS_AS(text.get(after), cox::Error);
    CHECK_THROWS_AS(text.get(before), cox::Error);
  }

  TEST_CASE("a missing, empty or short text is refused with one clear line") {
    const TempFolder folder;
    CHECK(mentions(refusal(folder / "none", 4), "No such file"));
    CHECK(mentions(refusal(folder.path(), 4), "regular file"));
    CHECK(mentions(refusal(folder.write("empty", ""), 4), "empty file"));
    CHECK(mentions(refusal(folder.write("short", "1234"), 4), "more than 4 bytes"));
    CHECK(mentions(refusal(folder.write("text", "12345"), 0), "block of 1 byte"));
    CHECK(refusal(folder.write("text", "12345"), 4) == "accepted");
  }
}

}  // namespace
