// The planner against a mixed-integer program, solved independently by cbc.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_problem.h"
#include "tests/planner/random_problem.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;
using test::Copies;

constexpr std::size_t kActions = kMemoryActionNames.size();

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "cox-cbc-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

// Returns " + 12 x3_1" for each allowed action of the stage.
std::string terms(const Stage& stage, std::size_t index, std::int64_t StageOption::*value) {
  std::string out;
  for (std::size_t a = 0; a < kActions; ++a) {
    if (!stage.options[a].allowed) continue;
    out += " + " + std::to_string(stage.options[a].*value) + " x" + std::to_string(index) + "_" +
           std::to_string(a);
  }
  return out;
}

// Returns the program: least added time with one action a stage, every pass within the budget.
std::string program(const MemoryProblem& problem, std::int64_t budget) {
  std::ostringstream objective, rows, names;
  std::string kept;
  const std::int64_t room = budget - problem.base_bytes;
  for (std::size_t i = 0; i < problem.stages.size(); ++i) {
    const Stage& stage = problem.stages[i];
    objective << terms(stage, i, &StageOption::added_us) << "\n";
    rows << "f" << i << ":" << kept << terms(stage, i, &StageOption::forward_high_bytes)
         << " <= " << room << "\n";
    rows << "b" << i << ":" << kept << terms(stage, i, &StageOption::backward_high_bytes)
         << " <= " << room << "\n";
    std::string one;
    for (std::size_t a = 0; a < kActions; ++a) {
      if (!stage.options[a].allowed) continue;
      const std::string name = "x" + std::to_string(i) + "_" + std::to_string(a);
      one += (one.empty() ? " " : " + ") + name;
      names << " " << name << "\n";
    }
    rows << "o" << i << ":" << one << " = 1\n";
    kept += terms(stage, i, &StageOption::kept_bytes) + "\n";
  }
  return "Minimize\n obj:" + objective.str() + "Subject To\n" + rows.str() + "Binary\n" +
         names.str() + "End\n";
}

enum class Verdict { infeasible, optimal, given_up };

struct Optimum {
  Verdict verdict = Verdict::infeasible;
  double added_us = 0;  // given_up: the time of cbc's best plan
};

// The first line is "Optimal - objective value 123.00000000", "Infeasible - ..." or "Stopped on
// ...". Chains of equal blocks are hard for branch and bound: cbc may give up after so many nodes.
Optimum by_cbc(const Folder& folder, const MemoryProblem& problem, std::int64_t budget) {
  std::ofstream(folder / "p.lp") << program(problem, budget);
  const std::string command = "cbc '" + (folder / "p.lp").string() +
                              "' maxNodes 3000 sec 5 ratioGap 0 allowableGap 0 solve solution '" +
                              (folder / "p.sol").string() + "' >'" + (folder / "log").string() +
                              "' 2>&1";
  fs::remove(folder / "p.sol");
  const int status = ::system(command.c_str());
  REQUIRE_MESSAGE(status == 0, "expected cbc (Debian package coinor-cbc); run scripts/bootstrap");
  std::ifstream file(folder / "p.sol");
  std::string line;
  REQUIRE(std::getline(file, line));
  if (line.find("nfeasible") != std::string::npos) return {};
  // Without an integer solution, the value is that of the relaxation.
  if (line.find("no integer solution") != std::string::npos)
    return {Verdict::given_up, std::numeric_limits<double>::infinity()};
  const bool is_optimal = line.starts_with("Optimal");
  REQUIRE_MESSAGE((is_optimal || line.starts_with("Stopped")), line);
  return {is_optimal ? Verdict::optimal : Verdict::given_up,
          std::stod(line.substr(line.rfind(' ')))};
}

TEST_SUITE("planner.cbc") {
  TEST_CASE("on random chains of up to 40 blocks time and feasibility are those of cbc") {
    const Folder folder;
    testing::Random random(21);
    int decided = 0;
    for (int i = 0; i < 36; ++i) {
      const MemoryProblem problem = test::block_chain(random, 4 + random.below(37), Copies::none);
      const auto solved = planner::solve_front(problem);
      REQUIRE(solved.ok());
      const std::int64_t low = solved->front.front().peak_bytes;
      const std::int64_t span = solved->front.back().peak_bytes - low;
      const std::int64_t budget = low + span * (i % 9 - 1) / 8;
      CAPTURE(i);
      const Optimum want = by_cbc(folder, problem, budget);
      const auto answer = planner::solve_budget(problem, budget, 1 << 14, planner::TieBreak::any);
      REQUIRE(answer.ok());
      CHECK(answer->is_exact());
      if (want.verdict == Verdict::infeasible) {
        CHECK_FALSE(answer->best.has_value());
        ++decided;
        continue;
      }
      REQUIRE(answer->best.has_value());
      CHECK(planner::schedule(problem, answer->best->actions).peak_bytes <= budget);
      const double added = static_cast<double>(answer->best->added_us);
      CHECK(added <= want.added_us + 0.5);
      if (want.verdict == Verdict::given_up) continue;
      ++decided;
      CHECK(added == doctest::Approx(want.added_us).epsilon(1e-9));
      const std::size_t index = lookup(solved->front, budget).value_or(0);
      CHECK(solved->front[index].added_us - solved->gap_us <= answer->best->added_us);
    }
    CHECK(decided >= 24);
    MESSAGE(decided << " of 36 decided by cbc");
  }
}

}  // namespace
}  // namespace cox
