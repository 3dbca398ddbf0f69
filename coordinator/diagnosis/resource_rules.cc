#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/diagnosis/rule_room.h"
#include "coordinator/diagnosis/statistics.h"

namespace cox::diagnosis {
namespace {

// ---- What the coordinator did.

void flapping_plans(const RuleRoom& room, Findings& out) {
  const std::vector<double> plans = room.own(0, "plan");
  if (plans.size() < 40) return;
  std::size_t changes = 0;
  for (std::size_t s = 1; s < plans.size(); ++s) {
    if (!is_absent(plans[s]) && !is_absent(plans[s - 1]) && plans[s] != plans[s - 1]) ++changes;
  }
  const double every =
      static_cast<double>(plans.size()) / static_cast<double>(std::max<std::size_t>(1, changes));
  if (changes < 6 || every > 10) return;
  Finding f;
  f.code = "PLAN.FLAPPING";
  f.severity = Severity::medium;
  f.title = "Plans change all the time";
  f.detail = concat("The plan changed ", changes, " times, every ", fixed(every, 1), " steps.");
  f.suggestion = "cox replay RUN --verbose names the policy; raise its threshold or its interval.";
  f.evidence = {{"changes", static_cast<double>(changes)}};
  out.push_back(std::move(f));
}

void skipped_steps(const RuleRoom& room, Findings& out) {
  const std::vector<double> skipped = room.own(0, "skipped");
  const std::vector<double> scale = room.own(0, "loss_scale");
  std::size_t count = 0;
  std::size_t at_floor = 0;
  double lost = 0;
  for (std::size_t s = 0; s < skipped.size(); ++s) {
    if (skipped[s] != 1) continue;
    ++count;
    at_floor += scale[s] <= 1 ? 1u : 0u;
    lost += room.view.wall(s);
  }
  const double share = static_cast<double>(count) / static_cast<double>(skipped.size());
  if (skipped.size() < 2 * kLeastSteps || count < 3 || share < 0.03) return;
  const bool is_floor = at_floor * 2 > count;
  Finding f = costly(room, is_floor ? "PRECISION.SCALE_AT_FLOOR" : "PRECISION.SKIPPED_STEPS",
                     is_floor ? "Gradients overflow even with the smallest loss scale"
                              : "Many steps are skipped after an overflow",
                     lost);
  f.severity = is_floor ? Severity::high : f.severity;
  f.detail = concat(count, " of ", skipped.size(), " steps were skipped, ", at_floor,
                    " of them with a loss scale of 1 or less.");
  f.suggestion = is_floor
                     ? "fp16 cannot hold these gradients: use bf16 for the blocks that overflow."
                     : "Start from a lower loss scale or let it grow more slowly (loss_scale).";
  f.evidence = {{"skipped", static_cast<double>(count)},
                {"at_floor", static_cast<double>(at_floor)}};
  out.push_back(std::move(f));
}

// Whether no later change of the same policy has overtaken the reason.
bool is_in_force(const RuleRoom& room, const Reason& reason, std::span<const ReasonCode> changes) {
  return std::ranges::none_of(room.view.run->decisions, [&](const Reason& other) {
    return other.policy == reason.policy && std::ranges::count(changes, other.code) > 0 &&
           other.round > reason.round;
  });
}

bool withholds(const Reason& reason) {
  constexpr std::array kAlways = {ReasonCode::not_capable, ReasonCode::precision_no_evidence,
                                  ReasonCode::precision_not_faster};
  constexpr std::array kVetoes = {ReasonCode::precision_forbidden, ReasonCode::precision_raised};
  if (reason.policy != PolicyKind::precision) return false;
  return std::ranges::count(kAlways, reason.code) > 0 ||
         (std::ranges::count(kVetoes, reason.code) > 0 && reason.outcome == Outcome::vetoed);
}

void withheld_precision(const RuleRoom& room, Findings& out) {
  constexpr std::array kChanges = {ReasonCode::precision_lowered};
  constexpr std::size_t kTold = 3;
  std::vector<std::string> why;
  for (const Reason& reason : room.view.run->decisions) {
    if (withholds(reason) && is_in_force(room, reason, kChanges)) why.push_back(reason.text);
  }
  if (why.empty()) return;
  Finding f;
  f.code = "PRECISION.WITHHELD";
  f.severity = Severity::low;
  f.title = "Blocks compute in more bits than they might";
  for (std::size_t i = 0; i < std::min(kTold, why.size()); ++i)
    f.detail += concat(i == 0 ? "" : "; ", why[i]);
  if (why.size() > kTold) f.detail += concat("; and ", why.size() - kTold, " more");
  f.detail += ".";
  f.suggestion =
      "Where the reason is a setting (precision.*), change it; else nothing is to be won.";
  f.evidence = {{"reasons", static_cast<double>(why.size())}};
  out.push_back(std::move(f));
}

void pinned_shares(const RuleRoom& room, Findings& out) {
  constexpr std::array kLimits = {ReasonCode::shares_limited, ReasonCode::shares_unmeetable};
  constexpr std::array kChanges = {ReasonCode::shares_changed};
  const double waiting = room.seconds_of("waiting");
  if (room.share(waiting) < 0.05) return;
  const Reason* pinned = nullptr;
  for (const Reason& reason : room.view.run->decisions) {
    if (reason.policy == PolicyKind::shares && std::ranges::count(kLimits, reason.code) > 0 &&
        is_in_force(room, reason, kChanges))
      pinned = &reason;
  }
  if (pinned == nullptr) return;
  Finding f =
      costly(room, "SHARES.PINNED", "Memory holds shares of the batch where they are", waiting);
  f.detail = concat("Ranks wait for slower ones for ", percents(room.share(waiting)),
                    " of the time, and shares cannot follow: ", pinned->text, ".");
  f.suggestion =
      "Give the faster ranks more memory (memory.budget), plan activation memory for "
      "them, or lower the minimum share (shares.*).";
  f.evidence = {{"waiting_share", room.share(waiting)}};
  out.push_back(std::move(f));
}

void stalling_saves(const RuleRoom& room, Findings& out) {
  const double seconds = room.seconds_of("saving");
  const auto saves = static_cast<std::size_t>(
      std::ranges::count_if(room.view.saving, [](float each) { return each > 0; }));
  if (saves < 2 || room.share(seconds) < 0.02) return;
  Finding f = costly(room, "SAVE.STALLS", "Saves hold all ranks up", seconds);
  const double each = seconds / static_cast<double>(saves);
  const std::size_t every = room.view.size() / saves;
  f.detail =
      concat(saves, " saves, one in ", every, " steps, took ", seconds_text(each),
             " each while every rank waited: ", percents(room.share(seconds)), " of the time.");
  f.suggestion = "Save more seldom (checkpoint.every_steps), or to a faster disk.";
  f.evidence = {{"saves", static_cast<double>(saves)}, {"seconds_each", each}};
  out.push_back(std::move(f));
}

void lost_rows(const RuleRoom& room, Findings& out) {
  constexpr double kFew = 0.005;  // of the steps; a report comes late now and then
  double dropped = 0;
  for (const RankRecord& rank : room.view.run->ranks) dropped += rank.info.dropped_rows;
  const auto missing = static_cast<double>(room.view.missing);
  if (dropped > 0 || missing > kFew * static_cast<double>(room.view.size())) {
    Finding f;
    f.code = "RECORD.DROPPED";
    f.title = "The record has holes";
    f.detail = concat(fixed(std::max(dropped, missing), 0), " steps were not recorded",
                      dropped > 0 ? ": the disk was full or too slow."
                                  : " by every rank: reports were lost, or rows.");
    f.suggestion = dropped > 0
                       ? "Give the run directory a faster disk or more room."
                       : "Look at the log of the ranks, and at coxswain_report_faults_total.";
    f.evidence = {{"rows", dropped}, {"missing_steps", missing}};
    out.push_back(std::move(f));
  }
  if (room.view.impossible == 0) return;
  Finding f;
  f.code = "RECORD.IMPOSSIBLE";
  f.title = "Some steps have times that cannot be";
  f.detail =
      concat(room.view.impossible, " steps with times below zero or not finite are left out.");
  f.suggestion = "Look at what wrote the record, and at the clock of the machine.";
  f.evidence = {{"steps", static_cast<double>(room.view.impossible)}};
  out.push_back(std::move(f));
}

constexpr std::array<NamedRule, 6> kResourceRules = {{{"flapping plans", flapping_plans},
                                                      {"skipped steps", skipped_steps},
                                                      {"withheld precision", withheld_precision},
                                                      {"pinned shares", pinned_shares},
                                                      {"stalling saves", stalling_saves},
                                                      {"lost rows", lost_rows}}};

}  // namespace

std::span<const NamedRule> resource_rules() {
  return kResourceRules;
}

}  // namespace cox::diagnosis
