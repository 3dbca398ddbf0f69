#include "coordinator/planner/memory_facts.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::planner {
namespace {

MemoryProblem without_times(MemoryProblem problem) {
  problem.copy_bytes_per_ms = std::min<std::int64_t>(problem.copy_bytes_per_ms, 1);
  for (Stage& stage : problem.stages) {
    stage.forward_us = stage.backward_us = 0;
    for (StageOption& option : stage.options) option.added_us = 0;
  }
  return problem;
}

void take_slowest(MemoryProblem& all, const MemoryProblem& one) {
  all.copy_bytes_per_ms = std::min(all.copy_bytes_per_ms, one.copy_bytes_per_ms);
  for (std::size_t s = 0; s < all.stages.size(); ++s) {
    Stage& stage = all.stages[s];
    stage.forward_us = std::max(stage.forward_us, one.stages[s].forward_us);
    stage.backward_us = std::max(stage.backward_us, one.stages[s].backward_us);
    for (std::size_t a = 0; a < stage.options.size(); ++a) {
      stage.options[a].added_us =
          std::max(stage.options[a].added_us, one.stages[s].options[a].added_us);
    }
  }
}

std::size_t block_of(const Stage& stage) {
  return static_cast<std::size_t>(stage.block);
}

Status check_blocks(const MemoryProblem& problem, std::size_t blocks) {
  std::vector<char> seen(blocks, 0);
  for (const Stage& stage : problem.stages) {
    if (stage.block == kGap) continue;
    if (stage.block < 0 || block_of(stage) >= blocks || seen[block_of(stage)]++ != 0) {
      return invalid_argument("memory: expected each of ", blocks,
                              " blocks in one stage at most, found block ", stage.block);
    }
  }
  return ok_status();
}

Result<MemoryModel> model_of(const MemoryProblem& problem, std::size_t blocks,
                             const FrontLimits& limits) {
  if (Status fits = check_blocks(problem, blocks); !fits.ok()) return fits;
  auto solved = solve_front(problem, limits);
  if (!solved.ok()) return solved.status();
  MemoryModel model;
  model.front = thinned(solved->front);
  for (MemoryPoint& point : model.front) point.actions = per_block(problem, blocks, point.actions);
  model.base_bytes = problem.base_bytes;
  model.kept_bytes.assign(blocks, 0);
  for (const Stage& stage : problem.stages) {
    model.step_us += stage.forward_us + stage.backward_us;
    if (stage.block == kGap) continue;
    model.kept_bytes[block_of(stage)] = stage.option(MemoryAction::keep).kept_bytes;
  }
  return model;
}

struct BlockShare {
  std::string name;
  std::int64_t bytes = 0;
  MemoryAction action = MemoryAction::keep;
  bool is_at_work = false;
};

// Returns "block h.3: 110 MiB (recompute, its backward runs)".
std::string share_text(const BlockShare& share, bool is_backward) {
  std::string text = concat("block ", share.name, ": ", mib_text(share.bytes));
  const std::string_view pass = is_backward ? "its backward runs" : "its forward runs";
  const bool is_kept = share.action == MemoryAction::keep;
  if (is_kept && !share.is_at_work) return text;
  return concat(text, " (", is_kept ? "" : in_words(share.action),
                !is_kept && share.is_at_work ? ", " : "", share.is_at_work ? pass : "", ")");
}

std::string blocks_text(std::vector<BlockShare> shares, bool is_backward) {
  constexpr std::size_t kBlocksTold = 4;
  std::ranges::stable_sort(shares, std::ranges::greater(), &BlockShare::bytes);
  std::string text;
  std::int64_t rest = 0;
  for (std::size_t b = 0; b < shares.size(); ++b) {
    if (b < kBlocksTold) text += concat(", ", share_text(shares[b], is_backward));
    if (b >= kBlocksTold) rest += shares[b].bytes;
  }
  if (shares.size() <= kBlocksTold) return text;
  return concat(text, " and ", shares.size() - kBlocksTold, " more blocks: ", mib_text(rest));
}

struct Kind {
  MemoryProblem key;  // without times
  std::uint64_t samples = 0;
  MemoryProblem problem;
};

struct Kinds {
  std::vector<Kind> all;
  std::vector<std::uint32_t> of_rank;
};

Kinds kinds_of(std::vector<RankProblem>& ranks) {
  Kinds kinds;
  for (RankProblem& rank : ranks) {
    if (rank.problem.stages.empty()) {
      kinds.of_rank.push_back(0);
      continue;
    }
    MemoryProblem key = without_times(rank.problem);
    const auto known = std::ranges::find_if(kinds.all, [&](const Kind& kind) {
      return kind.samples == rank.samples && kind.key == key;
    });
    const auto index = static_cast<std::size_t>(known - kinds.all.begin());
    if (known == kinds.all.end()) {
      kinds.all.push_back({std::move(key), rank.samples, std::move(rank.problem)});
    } else {
      take_slowest(known->problem, rank.problem);
    }
    kinds.of_rank.push_back(static_cast<std::uint32_t>(index));
  }
  return kinds;
}

}  // namespace

Result<MemoryFacts> memory_facts(std::vector<RankProblem> ranks, std::size_t blocks,
                                 const FrontLimits& limits) {
  const Kinds kinds = kinds_of(ranks);
  if (kinds.all.empty() || kinds.all.size() > kMaxMemoryModels) {
    return failed_precondition("memory: expected ranks of 1 to ", kMaxMemoryModels,
                               " kinds, found ", kinds.all.size(), "; all activations are kept");
  }
  MemoryFacts facts;
  for (const Kind& kind : kinds.all) {
    auto model = model_of(kind.problem, blocks, limits);
    if (!model.ok()) return model.status();
    model->samples = kind.samples;
    facts.models.push_back(std::move(*model));
  }
  facts.model_of_rank = kinds.of_rank;
  for (const RankProblem& rank : ranks) facts.limit_bytes.push_back(rank.limit_bytes);
  return facts;
}

std::vector<MemoryAction> per_block(const MemoryProblem& problem, std::size_t blocks,
                                    const std::vector<MemoryAction>& per_stage) {
  std::vector<MemoryAction> actions(blocks, MemoryAction::keep);
  for (std::size_t s = 0; s < problem.stages.size(); ++s) {
    const Stage& stage = problem.stages[s];
    if (stage.block != kGap) actions[block_of(stage)] = per_stage[s];
  }
  return actions;
}

std::vector<MemoryAction> per_stage(const MemoryProblem& problem,
                                    const std::vector<MemoryAction>& per_block) {
  std::vector<MemoryAction> actions(problem.stages.size(), MemoryAction::keep);
  for (std::size_t s = 0; s < actions.size(); ++s) {
    const Stage& stage = problem.stages[s];
    if (stage.block != kGap) actions[s] = per_block[block_of(stage)];
  }
  return actions;
}

std::string mib_text(std::int64_t bytes) {
  const double value = static_cast<double>(bytes) / 1048576.0;
  const int digits = value >= 100 ? 0 : value >= 1 ? 1 : 3;
  return concat(fixed(value, digits), " MiB");
}

std::string least_peak_text(const MemoryProblem& problem, const MemoryModel& model,
                            const std::vector<std::string>& blocks) {
  const std::vector<MemoryAction> actions = per_stage(problem, model.front.front().actions);
  const PeakParts parts = parts_of_peak(problem, actions);
  std::vector<BlockShare> shares;
  std::int64_t between = 0;
  for (std::size_t s = 0; s < parts.stage_bytes.size(); ++s) {
    const std::int64_t bytes = parts.stage_bytes[s];
    const std::int32_t block = problem.stages[s].block;
    if (block == kGap) between += bytes;
    if (block == kGap || bytes == 0) continue;
    shares.push_back(
        {blocks[block_of(problem.stages[s])], bytes, actions[s], s == parts.running_stage});
  }
  return concat("at that peak: ", mib_text(parts.base_bytes),
                " of parameters, gradients, optimizer and buffers, ", mib_text(between),
                " of activations outside of blocks",
                blocks_text(std::move(shares), parts.is_backward));
}

MemoryProfile profile_of(std::vector<RankProblem> ranks, const std::vector<std::string>& blocks) {
  Kinds kinds = kinds_of(ranks);
  MemoryProfile profile;
  for (std::size_t k = 0; k < kinds.all.size(); ++k) {
    RankProfile kind;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (kinds.of_rank[r] != k) continue;
      kind.limit_bytes = kind.ranks.empty() ? ranks[r].limit_bytes
                                            : std::min(kind.limit_bytes, ranks[r].limit_bytes);
      kind.ranks.push_back(static_cast<std::int32_t>(r));
    }
    for (const Stage& stage : kinds.all[k].problem.stages) {
      const bool is_first = kind.stage_names.empty();
      kind.stage_names.push_back(stage.block != kGap ? blocks[block_of(stage)]
                                 : is_first          ? "before the blocks"
                                                     : "after the blocks");
    }
    kind.problem = std::move(kinds.all[k].problem);
    profile.profiles.push_back(std::move(kind));
  }
  return profile;
}

}  // namespace cox::planner
