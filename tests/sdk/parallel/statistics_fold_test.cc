#include <algorithm>
#include <random>
#include <vector>

#include "sdk/src/parallel/batch_statistics.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

const std::vector<StatisticsModule> kTwo = {{.values = 2, .momentum = 0.1},
                                            {.values = 1, .momentum = 0.25, .in_fp32 = false}};

StatisticsPart part(std::uint64_t micro_batch, std::vector<std::uint32_t> runs,
                    std::vector<double> values) {
  return {micro_batch, std::move(runs), std::move(values)};
}

std::vector<double> folded(std::vector<StatisticsModule> modules, std::vector<double> start,
                           std::vector<StatisticsPart> parts) {
  auto result = fold_statistics(modules, std::move(start), std::move(parts));
  REQUIRE(result.ok());
  return *result;
}

}  // namespace

TEST_SUITE("statistics fold") {
  TEST_CASE("parts are folded in ascending micro-batches, in whatever order they come") {
    std::vector<StatisticsPart> parts;
    std::vector<double> expected = {1, 2, 3};
    std::mt19937 random(1);
    for (std::uint64_t i = 0; i < 20; ++i) {
      std::vector<double> values;
      for (int v = 0; v < 3; ++v) values.push_back(static_cast<double>(random() % 1000) / 7);
      for (std::size_t v = 0; v < 2; ++v) {
        expected[v] = static_cast<float>(values[v] + (1 - 0.1) * expected[v]);
      }
      expected[2] = values[2] + (1 - 0.25) * expected[2];
      parts.push_back(part(i, {1, 1}, values));
    }
    for (int order = 0; order < 10; ++order) {
      std::shuffle(parts.begin(), parts.end(), random);
      CHECK(folded(kTwo, {1, 2, 3}, parts) == expected);
    }
  }

  TEST_CASE("a module that did not run keeps its statistics, one that ran twice decays twice") {
    const auto result =
        folded(kTwo, {8, 8, 16}, {part(0, {0, 2}, {99, 99, 5}), part(1, {0, 0}, {99, 99, 99})});
    CHECK(result == std::vector<double>{8, 8, 0.5625 * 16 + 5});
  }

  TEST_CASE("without momentum the statistics are the plain average over all micro-batches") {
    const std::vector<StatisticsModule> modules = {{.values = 1, .momentum = {}, .tracked = 2}};
    // The average of two was 6; parts are 1/3 of 9 and 1/4 of 13.
    const auto result = folded(modules, {6}, {part(1, {1}, {13.0 / 4}), part(0, {1}, {3})});
    CHECK(result[0] == doctest::Approx((6 + 6 + 9 + 13) / 4.0));
    CHECK(folded(modules, {6}, {part(0, {0}, {0}), part(1, {0}, {0})})[0] == 6);
    for (const std::uint32_t runs : {0u, 2u}) {
      const auto refused = fold_statistics(modules, {6}, {part(0, {1}, {3}), part(1, {runs}, {3})});
      CHECK(refused.status().code() == StatusCode::failed_precondition);
      CHECK(refused.status().message().find("micro-batch 1") != std::string::npos);
    }
  }

  TEST_CASE("a micro-batch that is missing, there twice or of another size is refused") {
    const auto code = [](std::vector<StatisticsPart> parts) {
      return fold_statistics(kTwo, {1, 2, 3}, std::move(parts)).status().code();
    };
    const std::vector<double> three = {1, 2, 3};
    CHECK(code({part(1, {1, 1}, three)}) == StatusCode::internal);
    CHECK(code({part(0, {1, 1}, three), part(0, {1, 1}, three)}) == StatusCode::internal);
    CHECK(code({part(0, {1, 1}, three), part(2, {1, 1}, three)}) == StatusCode::internal);
    CHECK(code({part(0, {1, 1}, {1, 2})}) == StatusCode::internal);
    CHECK(code({part(0, {1}, three)}) == StatusCode::internal);
    CHECK(fold_statistics(kTwo, three, {}).ok());
  }

  TEST_CASE("rows carry parts to other ranks and back; rows that are not taken are left out") {
    const std::size_t width = row_width(kTwo);
    CHECK(width == 6);
    const std::vector<StatisticsPart> parts = {part(4, {1, 0}, {-1, 2, 3}),
                                               part(5, {2, 1}, {0, 0, -1})};
    const auto rows = to_rows(parts, 5, width);
    CHECK(rows.size() == 30);
    const auto back = from_rows(rows, width, 2);
    REQUIRE(back.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(back[i].micro_batch == parts[i].micro_batch);
      CHECK(back[i].runs == parts[i].runs);
      CHECK(back[i].values == parts[i].values);
    }
  }
}
