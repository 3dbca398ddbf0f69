#include "coordinator/core/settings/parallel.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "coordinator/core/config.h"

#include <doctest/doctest.h>

namespace {

using cox::Config;
using cox::PolicyMode;
using cox::StatusCode;

Config with(const std::string& lines) {
  Config config;
  const cox::Status status = cox::apply_text(config, lines, "test");
  REQUIRE_MESSAGE(status.ok(), status.message());
  return config;
}

struct Wrong {
  std::string says;
  std::function<void(Config&)> set;
};

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("the settings of data parallel are read into their places") {
    const Config config = with(
        "reduction.reproducible = on\nreduction.bucket_bytes = 4MiB\n"
        "reduction.shared_memory = off\n"
        "shares.mode = on\nshares.hint = 3=0.25, 1=2\nshares.min_samples = 2\n"
        "shares.max_samples = 0=512\nshares.settle_rounds = 5\n"
        "shares.smallest_gain_ratio = 0.1\n"
        "accumulation.mode = observe\naccumulation.target_ratio = 0.2\n"
        "accumulation.min_anchor = 2\naccumulation.max_anchor = 8\n"
        "accumulation.settle_rounds = 3\n");
    CHECK(config.reduction.reproducible);
    CHECK(config.reduction.bucket_bytes == 4 << 20);
    CHECK_FALSE(config.reduction.shared_memory);
    CHECK(config.shares.mode == PolicyMode::on);
    CHECK(config.shares.hint == std::map<std::int32_t, double>{{1, 2}, {3, 0.25}});
    CHECK(config.shares.min_samples == 2);
    CHECK(config.shares.max_samples == std::map<std::int32_t, std::uint64_t>{{0, 512}});
    CHECK(config.shares.settle_rounds == 5);
    CHECK(config.shares.smallest_gain_ratio == 0.1);
    CHECK(config.accumulation.mode == PolicyMode::observe);
    CHECK(config.accumulation.target_ratio == 0.2);
    CHECK(config.accumulation.min_anchor == 2);
    CHECK(config.accumulation.max_anchor == 8);
    CHECK(config.accumulation.settle_rounds == 3);
    CHECK(cox::validate(config).ok());
    CHECK(cox::text(with(cox::text(config))) == cox::text(config));
    CHECK(with("shares.hint = 1=2\nshares.hint =\n").shares.hint.empty());
  }

  TEST_CASE("lists by rank that are none are refused, and the setting stays") {
    struct {
      const char* line;
      const char* named;
    } const wrong[] = {{"shares.hint = 0", "RANK=VALUE"},
                       {"shares.hint = 0:2", "RANK=VALUE"},
                       {"shares.hint = 0=", "a number from 0.001 to 1000"},
                       {"shares.hint = =2", "found ''"},
                       {"shares.hint = 0=0", "found '0'"},
                       {"shares.hint = 0=-1", "found '-1'"},
                       {"shares.hint = 0=nan", "found 'nan'"},
                       {"shares.hint = 0=inf", "found 'inf'"},
                       {"shares.hint = -1=2", "found '-1'"},
                       {"shares.hint = 1048576=2", "found '1048576'"},
                       {"shares.hint = 1=2,1=3", "rank 1 is named twice"},
                       {"shares.hint = 1=2,", "last comma"},
                       {"shares.hint = 1=2,,3=1", "RANK=VALUE"},
                       {"shares.max_samples = 0=1.5", "found '1.5'"},
                       {"shares.max_samples = 0=-1", "found '-1'"},
                       {"shares.max_samples = 0=2147483649", "found '2147483649'"},
                       {"accumulation.target_ratio = 0", "from 0.001 to 0.9"},
                       {"accumulation.target_ratio = 1", "from 0.001 to 0.9"}};
    for (const auto& row : wrong) {
      CAPTURE(row.line);
      Config target;
      const cox::Status status = cox::apply_text(target, row.line, "job.cfg");
      CHECK(status.code() == StatusCode::invalid_argument);
      CAPTURE(status.text());
      CHECK(status.text().find(row.named) != std::string::npos);
      CHECK(cox::text(target) == cox::text(Config{}));
    }
  }

  TEST_CASE("what a program sets itself is checked as a file is") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const Wrong wrongs[] = {
        {"reduction.bucket_bytes", [](Config& c) { c.reduction.bucket_bytes = 1023; }},
        {"reduction.bucket_bytes", [](Config& c) { c.reduction.bucket_bytes = -1; }},
        {"shares.hint",
         [](Config& c) {
           c.shares.hint = {{2, 0.0}};
         }},
        {"shares.hint",
         [nan](Config& c) {
           c.shares.hint = {{2, nan}};
         }},
        {"shares.hint",
         [](Config& c) {
           c.shares.hint = {{-1, 1.0}};
         }},
        {"shares.max_samples",
         [](Config& c) {
           c.shares.max_samples = {{1 << 20, 5}};
         }},
        {"shares.max_samples of rank 1",
         [](Config& c) {
           c.shares.max_samples = {{1, 0}};
         }},
        {"shares.smallest_gain_ratio", [](Config& c) { c.shares.smallest_gain_ratio = -1; }},
        {"accumulation.target_ratio", [](Config& c) { c.accumulation.target_ratio = 0; }},
        {"accumulation.target_ratio", [nan](Config& c) { c.accumulation.target_ratio = nan; }},
        {"accumulation.min_anchor", [](Config& c) { c.accumulation.min_anchor = 0; }},
        {"accumulation.min_anchor", [](Config& c) { c.accumulation.min_anchor = 65; }}};
    REQUIRE(cox::validate(Config{}).ok());
    for (const Wrong& wrong : wrongs) {
      Config config;
      wrong.set(config);
      const cox::Status status = cox::validate(config);
      CAPTURE(wrong.says);
      CAPTURE(status.message());
      CHECK(status.code() == StatusCode::invalid_argument);
      CHECK(status.message().starts_with(wrong.says + ":"));
    }
  }

  TEST_CASE("the smallest values that make sense are accepted") {
    Config config;
    config.reduction.bucket_bytes = 1024;
    config.shares.min_samples = 0;
    config.shares.max_samples = {{0, 0}};
    config.accumulation.min_anchor = config.accumulation.max_anchor = 1;
    CHECK(cox::validate(config).ok());
  }
}
