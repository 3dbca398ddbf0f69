#include "coordinator/core/settings/memory.h"

#include <cmath>
#include <string>

#include "coordinator/core/config.h"
#include "coordinator/core/settings/settings.h"

#include <doctest/doctest.h>

namespace {

using cox::BudgetKind;
using cox::Config;
using cox::MemoryAction;
using cox::PolicyMode;

Config with(const std::string& lines) {
  Config config;
  const cox::Status status = cox::apply_text(config, lines, "test");
  REQUIRE_MESSAGE(status.ok(), status.message());
  return config;
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("bytes are read with their units, exactly, and written in the largest that fits") {
    struct {
      const char* text;
      std::int64_t bytes;
      const char* written;
    } const table[] = {{"0", 0, "0"},
                       {"65536", 65536, "64KiB"},
                       {"1000B", 1000, "1000"},
                       {"6GiB", std::int64_t{6} << 30, "6GiB"},
                       {"1.5MiB", 1572864, "1536KiB"},
                       {"4.8MiB", 5033165, "5033165"},  // as in messages; rounded to the nearest
                       {"1024TiB", std::int64_t{1} << 50, "1024TiB"},
                       {"1125899906842623", (std::int64_t{1} << 50) - 1, "1125899906842623"}};
    for (const auto& row : table) {
      CAPTURE(row.text);
      const auto bytes = cox::settings::parse_bytes(row.text);
      REQUIRE(bytes.ok());
      CHECK(*bytes == row.bytes);
      CHECK(cox::settings::format_bytes(*bytes) == row.written);
      CHECK(*cox::settings::parse_bytes(row.written) == row.bytes);
    }
    for (const char* wrong : {"", "GiB", "6 GiB", "6GB", "6gib", "-1", "0.3B", "1025TiB",
                              "1e300TiB", "nan", "infKiB"}) {
      CAPTURE(wrong);
      CHECK_FALSE(cox::settings::parse_bytes(wrong).ok());
    }
  }

  TEST_CASE("a budget is bytes, a fraction of the limit or a mode") {
    struct {
      const char* text;
      BudgetKind kind;
    } const table[] = {{"", BudgetKind::none},
                       {"6GiB", BudgetKind::bytes},
                       {"4096", BudgetKind::bytes},
                       {"0.6", BudgetKind::fraction},
                       {"1", BudgetKind::fraction},
                       {"conservative", BudgetKind::conservative},
                       {"balanced", BudgetKind::balanced},
                       {"aggressive", BudgetKind::aggressive}};
    for (const auto& row : table) {
      CAPTURE(row.text);
      const auto budget = cox::parse_budget(row.text);
      REQUIRE(budget.ok());
      CHECK(budget->kind == row.kind);
      CHECK(*cox::parse_budget(cox::format_budget(*budget)) == *budget);
    }
    for (const char* wrong : {"0", "0.001", "1.5", "-0.5", "half", "60%", "balanced "}) {
      CAPTURE(wrong);
      CHECK_FALSE(cox::parse_budget(wrong).ok());
    }
  }

  TEST_CASE("budgets of ranks and rules for blocks are lists, and wrong ones are named") {
    const Config config = with(
        "memory.budget_of_rank = 2:4GiB, 0:0.5\n"
        "memory.force = h.0=recompute, head=tile\nmemory.forbid = h.*=offload\n");
    CHECK(config.memory.budget_of_rank.at(2).bytes == std::int64_t{4} << 30);
    CHECK(config.memory.budget_of_rank.at(0).fraction == 0.5);
    CHECK(config.memory.force == std::vector<cox::ActionRule>{{"h.0", MemoryAction::recompute},
                                                              {"head", MemoryAction::tile}});
    struct {
      const char* line;
      const char* named;
    } const wrong[] = {{"memory.budget_of_rank = 0:1GiB,0:2GiB", "rank 0 is named twice"},
                       {"memory.budget_of_rank = 0=1GiB", "RANK:BUDGET"},
                       {"memory.budget_of_rank = 0:", "expected bytes"},
                       {"memory.budget_of_rank = -1:1GiB", "found '-1'"},
                       {"memory.force = h.0", "BLOCK=ACTION"},
                       {"memory.force = =keep", "BLOCK=ACTION"},
                       {"memory.force = h.0=drop", "keep|recompute|offload|tile"},
                       {"memory.forbid = h.0=tile,", "last comma"},
                       {"memory.budget = 6GB", "such as"},
                       {"memory.most_recomputed = 1.1", "from 0 to 1"}};
    for (const auto& row : wrong) {
      CAPTURE(row.line);
      Config target;
      const cox::Status status = cox::apply_text(target, "\n" + std::string(row.line), "job.cfg");
      CHECK(status.code() == cox::StatusCode::invalid_argument);
      const bool budget = std::string(row.named) == "such as";
      CHECK(status.text().find(budget ? "expected bytes" : row.named) != std::string::npos);
      CHECK(status.text().find("job.cfg:2") != std::string::npos);
      CHECK(cox::text(target) == cox::text(Config{}));
    }
  }

  TEST_CASE("memory is planned where a budget or a forced action is set, or the mode says so") {
    struct {
      const char* lines;
      PolicyMode mode;
    } const table[] = {
        {"", PolicyMode::off},
        {"memory.retry_rounds = 7", PolicyMode::off},
        {"memory.budget = 6GiB", PolicyMode::on},
        {"memory.budget_of_rank = 1:6GiB", PolicyMode::on},
        {"memory.force = h.0=recompute", PolicyMode::on},
        {"memory.mode = on", PolicyMode::on},
        {"memory.budget = 6GiB\nmemory.mode = observe", PolicyMode::observe},
        {"memory.budget = 6GiB\nmemory.mode = off", PolicyMode::off},
        {"memory.mode = off\nmemory.mode = auto\nmemory.budget = 1", PolicyMode::on}};
    for (const auto& row : table) {
      CAPTURE(row.lines);
      Config config = with(row.lines);
      CHECK(cox::mode_of(config, "memory") == row.mode);
      config.policy_modes["memory"] = PolicyMode::observe;  // as for a program's own policy
      CHECK(cox::mode_of(with(cox::text(config)), "memory") == row.mode);
    }
  }

  TEST_CASE("a pattern fits a name as a whole, and a star stands for any text") {
    struct {
      const char* pattern;
      const char* name;
      bool fits;
    } const table[] = {{"h.0", "h.0", true},
                       {"h.0", "h.01", false},
                       {"h", "h.0", false},
                       {"h.*", "h.0", true},
                       {"h.*", "h.", true},
                       {"h.*", "h", false},
                       {"*", "", true},
                       {"*.mlp", "a.b.mlp", true},
                       {"*.mlp", "mlp", false},
                       {"a*b*c", "aXbXbYc", true},
                       {"a*b*c", "aXcXb", false},
                       {"**", "x", true},
                       {"", "", true},
                       {"", "x", false}};
    for (const auto& row : table) {
      CAPTURE(row.pattern);
      CAPTURE(row.name);
      CHECK(cox::fits_pattern(row.pattern, row.name) == row.fits);
    }
  }

  TEST_CASE("a block may have what is forced on it, else what is neither off nor forbidden") {
    const Config config = with(
        "memory.force = h.*=recompute, h.3=offload\nmemory.forbid = emb*=recompute\n"
        "memory.tile = off\n");
    const cox::MemoryConfig& m = config.memory;
    CHECK(cox::allowed_actions(m, "h.0") == cox::kEveryRecompute);  // at any level
    CHECK(cox::allowed_actions(m, "h.3") == cox::only(MemoryAction::offload));
    CHECK(cox::allowed_actions(m, "head") == cox::without(cox::kEveryAction, MemoryAction::tile));
    CHECK(cox::allowed_actions(m, "embed") ==
          (cox::only(MemoryAction::keep) | cox::only(MemoryAction::offload)));
    for (const char* level : {"recompute 2", "recompute_2"}) {
      cox::Config named;
      const std::string rule = std::string("memory.forbid = h.1=") + level + "\n";
      CHECK_FALSE(cox::apply_text(named, rule, "test").ok());
    }
    CHECK(cox::forcing_rule(m, "h.3")->pattern == "h.3");
    CHECK(cox::forcing_rule(m, "head") == nullptr);
    CHECK(cox::allowed_actions({}, "head") == cox::kEveryAction);
  }
}
