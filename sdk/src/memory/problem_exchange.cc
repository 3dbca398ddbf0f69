#include "sdk/src/memory/problem_exchange.h"

#include "coordinator/planner/memory_problem.h"
#include "sdk/src/parallel/gather_rows.h"

namespace cox::detail {
namespace {

using planner::RankProblem;

constexpr std::int64_t kNone = -1;
constexpr std::size_t kHeadWords = 6;
constexpr std::size_t kOptionWords = 7;
constexpr std::size_t kStageWords = 3 + 4 * kOptionWords;

}  // namespace

std::vector<std::int64_t> to_words(const RankProblem& rank) {
  const MemoryProblem& problem = rank.problem;
  std::vector<std::int64_t> words = {static_cast<std::int64_t>(problem.stages.size()),
                                     rank.limit_bytes,
                                     problem.base_bytes,
                                     problem.copy_bytes_per_ms,
                                     problem.tier_bytes.value_or(kNone),
                                     problem.most_recomputed.value_or(kNone)};
  for (const Stage& stage : problem.stages) {
    words.insert(words.end(), {stage.block, stage.forward_us, stage.backward_us});
    for (const StageOption& option : stage.options) {
      words.insert(words.end(), {option.allowed ? 1 : 0, option.kept_bytes,
                                 option.forward_high_bytes, option.backward_high_bytes,
                                 option.added_us, option.copied_bytes, option.stored_bytes});
    }
  }
  return words;
}

Result<RankProblem> from_words(std::span<const std::int64_t> words) {
  const bool has_head = words.size() >= kHeadWords && words[0] >= 0 &&
                        words[0] <= static_cast<std::int64_t>(planner::kMaxStages);
  const std::size_t stages = has_head ? static_cast<std::size_t>(words[0]) : 0;
  if (!has_head || words.size() < kHeadWords + stages * kStageWords) {
    return invalid_argument("memory problem: expected " + std::to_string(kHeadWords) +
                            " words and " + std::to_string(kStageWords) + " a stage, found " +
                            std::to_string(words.size()));
  }
  RankProblem rank;
  rank.limit_bytes = words[1];
  MemoryProblem& problem = rank.problem;
  problem.base_bytes = words[2];
  problem.copy_bytes_per_ms = words[3];
  if (words[4] != kNone) problem.tier_bytes = words[4];
  if (words[5] != kNone) problem.most_recomputed = static_cast<std::int32_t>(words[5]);
  const std::int64_t* next = words.data() + kHeadWords;
  for (std::size_t s = 0; s < stages; ++s) {
    Stage stage;
    stage.block = static_cast<std::int32_t>(next[0]);
    stage.forward_us = next[1];
    stage.backward_us = next[2];
    next += 3;
    for (StageOption& option : stage.options) {
      option = {next[0] != 0, next[1], next[2], next[3], next[4], next[5], next[6]};
      next += kOptionWords;
    }
    problem.stages.push_back(stage);
  }
  return rank;
}

Result<std::vector<RankProblem>> gather_problems(transport::Communicator& ranks,
                                                 const RankProblem& mine) {
  const auto rows = gather_rows(ranks, to_words(mine), "all ranks to measure their memory");
  if (!rows.ok()) return rows.status();
  std::vector<RankProblem> problems;
  for (const Row& row : *rows) {
    auto problem = from_words(row);
    if (!problem.ok()) return problem.status();
    problems.push_back(std::move(*problem));
  }
  return problems;
}

}  // namespace cox::detail
