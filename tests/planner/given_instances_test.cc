// The recorded planning problems, whose optima were found by trying every plan.
#include <fstream>
#include <sstream>

#include "coordinator/io/json.h"
#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_problem.h"
#include "metrics/records/planning_files.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

std::string recorded() {
  std::ifstream file(COX_TEST_DATA "/memory-plans/instances.json");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void check_answer(const io::PlanInstance& instance, std::int64_t budget, const io::Json& want) {
  CAPTURE(instance.id);
  CAPTURE(budget);
  const auto answer =
      planner::solve_budget(instance.problem, budget, 1 << 15, planner::TieBreak::named);
  REQUIRE(answer.ok());
  REQUIRE(answer->best.has_value() == want.find("feasible")->boolean);
  CHECK(answer->is_exact());
  if (!answer->best) return;
  CHECK(static_cast<double>(answer->best->added_us) == want.find("extra_us")->number);
  CHECK(static_cast<double>(answer->best->peak_bytes) == want.find("peak")->number);
  CHECK(io::letters(answer->best->actions) == want.find("plan")->string);
  const planner::ScheduledStep step = planner::schedule(instance.problem, answer->best->actions);
  CHECK(step.peak_bytes <= budget);
  CHECK(step.added_us == answer->best->added_us);
}

TEST_SUITE("planner.given_instances") {
  TEST_CASE("every recorded optimum is met: time, peak and plan") {
    const std::string text = recorded();
    const auto instances = io::read_instances(text);
    REQUIRE_MESSAGE(instances.ok(), instances.status().message());
    const auto json = io::parse_json(text);
    REQUIRE(json.ok());
    const std::vector<io::Json>& all = json->find("instances")->items;
    REQUIRE(all.size() == instances->size());
    std::size_t answers = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::vector<io::Json>& budgets = all[i].find("budgets")->items;
      for (std::size_t b = 0; b < budgets.size(); ++b, ++answers)
        check_answer((*instances)[i], (*instances)[i].budgets[b], budgets[b]);
    }
    CHECK(answers == 200);
  }

  TEST_CASE("the uniform plans and the least peak of all are priced as recorded") {
    const std::string text = recorded();
    const auto instances = io::read_instances(text);
    const auto json = io::parse_json(text);
    REQUIRE(instances.ok());
    for (std::size_t i = 0; i < instances->size(); ++i) {
      const MemoryProblem& problem = (*instances)[i].problem;
      const io::Json& ends = *json->find("instances")->items[i].find("ends");
      const auto check = [&](const char* name, MemoryAction action) {
        const std::vector<MemoryAction> plan(problem.stages.size(), action);
        const planner::ScheduledStep step = planner::schedule(problem, plan);
        CHECK(static_cast<double>(step.peak_bytes) == ends.find(name)->find("peak")->number);
        CHECK(static_cast<double>(step.added_us) == ends.find(name)->find("extra_us")->number);
      };
      check("keep_all", MemoryAction::keep);
      check("recompute_all", MemoryAction::recompute);
      check("offload_all", MemoryAction::offload);
      const auto nothing = planner::solve_budget(problem, 0, 4096, planner::TieBreak::any);
      REQUIRE(nothing.ok());
      CHECK(static_cast<double>(nothing->least_peak_bytes) ==
            ends.find("least_peak_of_any_plan")->number);
    }
  }
}

}  // namespace
}  // namespace cox
