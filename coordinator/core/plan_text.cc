#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/core/plan_classes.h"
#include "coordinator/core/text.h"

namespace cox {
namespace {

std::string number_text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", value);
  return buffer;
}

template <class Knob>
std::string mix_text(const std::vector<Knob>& knobs) {
  std::map<Knob, std::vector<std::size_t>> blocks;
  for (std::size_t b = 0; b < knobs.size(); ++b) blocks[knobs[b]].push_back(b);
  std::string out;
  for (const auto& [knob, members] : blocks) {
    if (!out.empty()) out += "; ";
    out += std::string(to_string(knob)) + " in " + std::to_string(members.size()) + " blocks (" +
           ranges_text(members) + ")";
  }
  return out.empty() ? "no blocks" : out;
}

// "bf16 -> fp32: blocks 0-3" for every kind of change.
template <class Knob>
void diff_blocks(const std::vector<Knob>& before, const std::vector<Knob>& after,
                 const std::string& what, std::vector<std::string>& lines) {
  std::map<std::pair<Knob, Knob>, std::vector<std::size_t>> changes;
  for (std::size_t b = 0; b < std::min(before.size(), after.size()); ++b) {
    if (before[b] != after[b]) changes[{before[b], after[b]}].push_back(b);
  }
  for (const auto& [change, blocks] : changes) {
    lines.push_back(what + ": " + std::string(to_string(change.first)) + " -> " +
                    std::string(to_string(change.second)) + " in blocks " + ranges_text(blocks));
  }
}

std::string ranks_text(const std::vector<RankId>& ranks) {
  if (ranks.empty()) return "all ranks";
  std::vector<std::size_t> numbers;
  for (const RankId rank : ranks) numbers.push_back(static_cast<std::size_t>(rank.value()));
  return "ranks " + ranges_text(numbers);
}

std::string shares_text(const std::vector<std::uint32_t>& shares) {
  if (shares.empty()) return "even";
  std::string out;
  const std::size_t shown = std::min<std::size_t>(shares.size(), 32);
  for (std::size_t r = 0; r < shown; ++r) {
    out += (r > 0 ? " " : "") + std::to_string(shares[r]);
  }
  if (shown < shares.size()) {
    out += " ... (" + std::to_string(shares.size()) + " ranks)";
  }
  return out;
}

std::string batch_text(std::uint64_t step_samples) {
  return step_samples == 0 ? "the job's" : std::to_string(step_samples) + " samples";
}

std::string scaler_text(const ScalerRules& s) {
  return "start " + number_text(s.initial_scale) + ", x" + number_text(s.growth_factor) +
         " after " + std::to_string(s.growth_interval) + " clean steps, x" +
         number_text(s.backoff_factor) + " on overflow, within " + number_text(s.min_scale) +
         " .. " + number_text(s.max_scale) + ", hysteresis " + std::to_string(s.hysteresis) +
         ", headroom " + std::to_string(s.headroom_bits) + " bits";
}

std::string rollback_text(const RollbackOrder& order) {
  if (order.ticket == 0) return "none";
  return "ticket " + std::to_string(order.ticket) + ", to before round " +
         std::to_string(order.before_round.value());
}

}  // namespace

std::vector<std::string> diff(const Plan& before, const Plan& after) {
  std::vector<std::string> lines;
  const auto changed = [&lines](const std::string& what, const std::string& a,
                                const std::string& b) {
    lines.push_back(what + ": " + a + " -> " + b);
  };
  diff_blocks(before.precision, after.precision, "precision", lines);
  for (const ClassMove& move : class_moves(before, after)) {
    diff_blocks(before.classes[move.before.value()], after.classes[move.after.value()],
                "memory of " + ranks_text(move.ranks), lines);
  }
  if (before.shares != after.shares) {
    changed("shares", shares_text(before.shares), shares_text(after.shares));
  }
  if (before.step_samples != after.step_samples) {
    changed("batch", batch_text(before.step_samples), batch_text(after.step_samples));
  }
  if (before.cadence_steps != after.cadence_steps) {
    changed("cadence", std::to_string(before.cadence_steps) + " steps",
            std::to_string(after.cadence_steps) + " steps");
  }
  if (before.scaler != after.scaler) {
    changed("scaler", scaler_text(before.scaler), scaler_text(after.scaler));
  }
  if (before.hold_until != after.hold_until) {
    changed("hold", "until round " + std::to_string(before.hold_until.value()),
            "until round " + std::to_string(after.hold_until.value()));
  }
  if (before.rollback != after.rollback) {
    changed("rollback", rollback_text(before.rollback), rollback_text(after.rollback));
  }
  return lines;
}

std::string text(const Plan& plan) {
  std::string out =
      "plan " + std::to_string(plan.id.incarnation) + "." + std::to_string(plan.id.number) +
      ", from round " + std::to_string(plan.earliest_round.value()) + " on, " +
      (plan.activated_round ? "active since round " + std::to_string(plan.activated_round->value())
                            : std::string("not seen active yet")) +
      "\n";
  out += "precision: " + mix_text(plan.precision) + "\n";
  for (std::size_t c = 0; c < plan.classes.size(); ++c) {
    const ClassId id(static_cast<std::uint16_t>(c));
    const auto members = std::count(plan.rank_class.begin(), plan.rank_class.end(), id);
    out += "memory of class " + std::to_string(c) + " (" +
           (plan.rank_class.empty() ? "all" : std::to_string(members)) +
           " ranks): " + mix_text(plan.classes[c]) + "\n";
  }
  out += "shares: " + shares_text(plan.shares) + "\n";
  out += "batch: " + batch_text(plan.step_samples) + "\n";
  out += "cadence: " + std::to_string(plan.cadence_steps) + " steps\n";
  out += "scaler: " + scaler_text(plan.scaler) + "\n";
  out += "hold: until round " + std::to_string(plan.hold_until.value()) + "\n";
  out += "rollback: " + rollback_text(plan.rollback) + "\n";
  return out;
}

}  // namespace cox
