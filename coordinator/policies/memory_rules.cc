#include "coordinator/policies/memory_rules.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"

namespace cox {
namespace {

std::string text_of(const BlockRule& rule) {
  return rule.pattern + "=" + std::string(to_string(rule.action));
}

Reason say(ReasonCode code, std::string text) {
  Reason reason;
  reason.code = code;
  reason.outcome = Outcome::reported;
  reason.text = std::move(text);
  return reason;
}

void find_idle_rules(const JobFacts& job, const std::vector<BlockRule>& rules,
                     const std::string& key, std::vector<Reason>& findings) {
  for (const BlockRule& rule : rules) {
    const bool fits = std::any_of(
        job.blocks.begin(), job.blocks.end(),
        [&rule](const std::string& block) { return fits_pattern(rule.pattern, block); });
    if (!fits) {
      findings.push_back(say(ReasonCode::memory_rules,
                             key + " has " + text_of(rule) + ", which fits no block of this job"));
    } else if (key == "memory.force" && !job.capabilities.can(rule.action)) {
      findings.push_back(say(
          ReasonCode::not_capable,
          key + " has " + text_of(rule) + ", which this job cannot apply; the blocks are kept"));
    }
  }
}

// Why a block may not have the action.
std::string why_not(const MemoryConfig& config, const std::string& block, MemoryAction action,
                    bool rests) {
  const std::string name = "block " + block;
  const std::string verb(to_string(action));
  if (rests) return name + " failed under " + verb + " and rests from it";
  if (const BlockRule* rule = forcing_rule(config, block)) {
    return name + " must not have " + verb + ": memory.force has " + text_of(*rule);
  }
  const auto forbids = [&](const BlockRule& rule) {
    return rule.action == action && fits_pattern(rule.pattern, block);
  };
  const auto rule = std::find_if(config.forbid.begin(), config.forbid.end(), forbids);
  if (rule != config.forbid.end()) {
    return name + " must not have " + verb + ": memory.forbid has " + text_of(*rule);
  }
  return name + " cannot have " + verb + ": it is switched off or this job cannot apply it";
}

}  // namespace

std::vector<Reason> rule_findings(const JobFacts& job, const MemoryConfig& config) {
  std::vector<Reason> findings;
  find_idle_rules(job, config.force, "memory.force", findings);
  find_idle_rules(job, config.forbid, "memory.forbid", findings);
  for (const auto& [rank, budget] : config.budget_of_rank) {
    if (rank < job.world_size) continue;
    findings.push_back(say(ReasonCode::memory_rules,
                           sentence("memory.budget_of_rank has rank %d, this job has %d ranks",
                                    static_cast<int>(rank), static_cast<int>(job.world_size))));
  }
  const auto forced = std::count_if(
      job.blocks.begin(), job.blocks.end(),
      [&config](const std::string& block) { return forcing_rule(config, block) != nullptr; });
  if (forced > 0) {
    findings.push_back(say(ReasonCode::memory_rules,
                           sentence("memory.force: the user sets the action of %d of %zu blocks",
                                    static_cast<int>(forced), job.blocks.size())));
  }
  return findings;
}

Reason rule_reason(const PolicyInput& input, const RankView& view,
                   std::span<const ActionSet> allowed, std::span<const RestingAction> resting) {
  const std::vector<MemoryAction>& actions = input.plan.classes[view.now_class.value()];
  std::size_t block = 0;
  while (block + 1 < actions.size() && contains(allowed[block], actions[block])) ++block;
  const bool rests = std::any_of(resting.begin(), resting.end(), [&](const RestingAction& rest) {
    return rest.block == block && rest.action == actions[block];
  });
  Reason reason = say(rests ? ReasonCode::memory_block_failed : ReasonCode::memory_rules,
                      why_not(input.config.memory, input.job.blocks[block], actions[block], rests));
  reason.outcome = Outcome::unspecified;
  reason.block = static_cast<std::int32_t>(block);
  return reason;
}

std::string failure_text(const JobFacts& job, const ActionEvent& event, unsigned retry_rounds) {
  std::string text = "block " + job.blocks[event.block] + " failed under " +
                     std::string(to_string(event.action)) +
                     sentence(" on rank %d", event.rank.value());
  if (!event.what.empty()) text += " (" + event.what + ")";
  return text + sentence("; no rank uses it there for %u rounds", retry_rounds);
}

std::string retry_text(const JobFacts& job, const ActionEvent& event, unsigned retry_rounds) {
  return "block " + job.blocks[event.block] + " has rested from " +
         std::string(to_string(event.action)) +
         sentence(" for %u rounds and may be planned with it again", retry_rounds);
}

}  // namespace cox
