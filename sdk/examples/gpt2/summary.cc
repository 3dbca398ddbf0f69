#include "sdk/examples/gpt2/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "coordinator/core/text.h"

namespace gpt2 {
namespace {

constexpr std::string_view kReasonIndent = "        ";
constexpr const char* kFindingRow = "{:>6}  {:<12} {:<28} {}";

double mib(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

std::string joined(const std::vector<std::string>& parts) {
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string predicted_text(const cox::Forecast& forecast) {
  std::vector<std::string> parts;
  if (forecast.step_ratio > 0) {
    parts.push_back("step " + cox::change_text(forecast.step_ratio, forecast.step_ratio_low,
                                               forecast.step_ratio_high));
  }
  if (forecast.peak_bytes > 0) {
    parts.push_back(fmt::format("peak {:.1f} MiB", mib(forecast.peak_bytes)));
  }
  return joined(parts);
}

std::string measured_step(const cox::Effect& effect) {
  const double before = effect.before.step_seconds;
  const double after = effect.after.step_seconds;
  if (after <= 0) return {};
  if (before <= 0) return "step " + cox::seconds_text(after);
  const cox::RatioInterval& measured = effect.measured;
  return fmt::format("step {} -> {}: {}", cox::seconds_text(before), cox::seconds_text(after),
                     measured.is_known()
                         ? cox::change_text(measured.ratio, measured.low, measured.high)
                         : cox::change_text(after / before));
}

std::string measured_peak(std::uint64_t before, std::uint64_t after) {
  if (after == 0) return {};
  const auto text = [](std::uint64_t bytes) { return mib(static_cast<std::int64_t>(bytes)); };
  if (before == 0) return fmt::format("peak {:.1f} MiB", text(after));
  return fmt::format("peak {:.1f} -> {:.1f} MiB", text(before), text(after));
}

std::string measured_text(const cox::Effect& effect) {
  if (!effect.plan) return "-";
  if (effect.after.rounds == 0) return "not applied long enough";
  std::vector<std::string> parts;
  for (std::string part :
       {measured_step(effect), measured_peak(effect.before.peak_bytes, effect.after.peak_bytes)}) {
    if (!part.empty()) parts.push_back(std::move(part));
  }
  return joined(parts);
}

// Returns "12.0 s gained" or "4.0 s lost"; empty if no effect is certain.
std::string saved_text(double seconds) {
  if (seconds == 0) return {};
  return cox::gain_text(std::abs(seconds)) + (seconds > 0 ? " gained" : " lost");
}

std::string came_to_text(const cox::Effect& effect) {
  const std::string verdict = cox::verdict_text(effect);
  const std::string saved = saved_text(effect.seconds_saved);
  if (verdict.empty() && saved.empty()) return {};
  return fmt::format("{}{}{}", verdict, verdict.empty() || saved.empty() ? "" : "; ", saved);
}

// Returns lines of whole words, each with the indent before it.
std::string wrapped(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const std::size_t room = kLineWidth - kReasonIndent.size();
    std::size_t end = text.size() <= room ? text.size() : text.rfind(' ', room);
    if (end == std::string_view::npos || end == 0) end = room;
    lines += fmt::format("{}{}\n", kReasonIndent, text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return lines;
}

std::string one_line(std::string_view text) {
  return cox::shortened(text, kLineWidth) + "\n";
}

std::string promised_text(const cox::Forecast& forecast) {
  if (forecast.step_ratio <= 0) return {};
  return fmt::format(" (promised {})", cox::change_text(forecast.step_ratio));
}

// Returns "step 332 ms -> 249 ms, -25.0 % (promised -25.0 %): helped; 1 min 05 s gained".
std::string outcome_text(const cox::Effect& effect) {
  if (!effect.plan) return effect.reason.text;
  const cox::Forecast& forecast = effect.reason.forecast;
  const double before = effect.before.step_seconds;
  const double after = effect.after.step_seconds;
  if (after <= 0) return "not applied long enough" + promised_text(forecast);
  if (before <= 0) {
    return joined({measured_step(effect), measured_peak(0, effect.after.peak_bytes)}) +
           promised_text(forecast);
  }
  const double ratio = effect.measured.is_known() ? effect.measured.ratio : after / before;
  const std::string came_to = came_to_text(effect);
  return fmt::format("step {} -> {}, {}{}{}", cox::seconds_text(before), cox::seconds_text(after),
                     cox::change_text(ratio), promised_text(forecast),
                     came_to.empty() ? "" : ": " + came_to);
}

std::string short_effects(const cox::EffectList& effects) {
  constexpr std::size_t kMost = 12;
  constexpr const char* kRow = "{:>6}  {:<12} {}";
  const std::size_t left_out = effects.size() - std::min(effects.size(), kMost);
  std::string text = "decisions and their effects (--verbose prints reasons and intervals)\n";
  text += one_line(fmt::format(kRow, "step", "decision", "effect"));
  if (left_out > 0) text += fmt::format("{:>6}  {} earlier decisions\n", "...", left_out);
  std::optional<std::uint64_t> plan_above;
  for (auto each = effects.begin() + static_cast<std::ptrdiff_t>(left_out); each != effects.end();
       ++each) {
    const bool is_same_plan = each->plan && each->plan == plan_above;
    text +=
        one_line(fmt::format(kRow, each->step.value(), cox::to_string(each->reason.policy),
                             is_same_plan ? "one plan with the line above" : outcome_text(*each)));
    plan_above = each->plan;
  }
  return text;
}

std::string full_effects(const cox::EffectList& effects) {
  constexpr const char* kRow = "{:>6}  {:<12} {:<28} {}\n";
  std::string text = fmt::format(
      "decisions and their effects (median step of up to {} rounds before and {} after, its change "
      "with the 95 % interval, highest peak of a rank)\n",
      cox::Effects::kRoundsBefore, cox::Effects::kRoundsAfter);
  text += fmt::format(kRow, "step", "decision", "promised", "measured");
  std::optional<std::uint64_t> plan_above;
  for (const cox::Effect& effect : effects) {
    const bool is_same_plan = effect.plan && effect.plan == plan_above;
    text += fmt::format(kRow, effect.step.value(), cox::to_string(effect.reason.policy),
                        predicted_text(effect.reason.forecast),
                        is_same_plan ? "as above: one plan" : measured_text(effect));
    text += wrapped(effect.reason.text);
    const std::string came_to = came_to_text(effect);
    if (!is_same_plan && !came_to.empty()) text += wrapped("-> " + came_to);
    plan_above = effect.plan;
  }
  return text;
}

}  // namespace

std::string memory_line(const cox::SessionReport& report) {
  if (!report.memory_planned || report.memory_peak_bytes <= 0) return {};  // not predicted
  const bool is_measured = report.memory_measured_bytes > 0;
  std::string line =
      fmt::format("memory: at most {:.1f} MiB on a rank ({})",
                  mib(is_measured ? report.memory_measured_bytes : report.memory_peak_bytes),
                  is_measured ? "measured" : "predicted");
  if (report.memory_saved_bytes > 0) {
    line += fmt::format(
        "\n  the last plan saves up to {:.1f} MiB of a rank's blocks for up to +{:.1f} % of time "
        "(predicted)",
        mib(report.memory_saved_bytes), 100 * report.memory_added_ratio);
  }
  return line + "\n";
}

std::string cost_line(const cox::SessionReport& report, double price_per_device_hour) {
  if (price_per_device_hour <= 0) return {};
  std::string line =
      fmt::format("cost: {:.4g} at {:.4g} per device-hour", report.cost, price_per_device_hour);
  if (report.memory_planned) {
    line += fmt::format("; the time that saves memory costs {:.4g} per hour",
                        report.memory_cost_hourly);
  }
  return line + "\n";
}

std::string start_line(const Options& options, int world_size) {
  return fmt::format("training on {}: {} steps of {} sequences of {} bytes, on {} rank{}\n",
                     options.text, options.steps, options.batch, options.length, world_size,
                     world_size == 1 ? "" : "s");
}

std::string pace_line(const cox::SessionReport& report) {
  constexpr double kEven = 1.05;
  if (report.slowdown_ratio < kEven) return "ranks: equally fast at the end\n";
  return fmt::format(
      "ranks: at the end rank {} worked {:.2f} times as long as the fastest, in {}\n",
      report.slowest_rank, report.slowdown_ratio, cox::to_string(report.slowest_phase));
}

std::string effects_table(const cox::EffectList& effects, Detail detail) {
  if (effects.empty()) return {};
  return detail == Detail::full ? full_effects(effects) : short_effects(effects);
}

std::string score_lines(const std::vector<cox::PolicyScore>& scores) {
  std::string text;
  for (const cox::PolicyScore& score : scores) {
    text += fmt::format(
        "{}: {} of its measured changes helped, {} did not ({} taken back), {} not sure; {} "
        "gained, {} lost, {} promised\n",
        cox::to_string(score.policy), score.helped, score.did_not_help, score.taken_back,
        score.not_sure, cox::gain_text(score.seconds_gained), cox::gain_text(score.seconds_lost),
        cox::gain_text(score.seconds_promised));
  }
  return text;
}

std::string findings_table(const std::vector<cox::ReportedFinding>& findings, Detail detail) {
  if (findings.empty()) return {};
  std::string text = "losses of the newest steps (highest cost first)\n";
  text += one_line(fmt::format(kFindingRow, "grade", "costs", "code", "finding"));
  for (const cox::ReportedFinding& f : findings) {
    const std::string cost = f.cost_seconds > 0
                                 ? fmt::format("{} {}", cox::seconds_text(f.cost_seconds),
                                               cox::percent_text(f.cost_share, 0))
                                 : "-";
    text += one_line(fmt::format(kFindingRow, f.severity, cost, f.code, f.title));
    if (detail == Detail::full) text += wrapped(f.detail) + wrapped(f.suggestion);
  }
  return text;
}

// A job that was already complete when it resumed trains nothing.
std::string loss_line(const RunSummary& summary) {
  if (!summary.first_loss)
    return fmt::format("nothing was trained: all {} steps were done before\n", summary.steps);
  return fmt::format("loss {:.4f} -> {:.4f} in {} steps{}, {:.0f} tokens/s\n", *summary.first_loss,
                     summary.last_loss, summary.steps,
                     summary.stopped ? " (stopped early, as asked)" : "",
                     summary.tokens_per_second);
}

std::string summary_text(const RunSummary& summary, const cox::SessionReport& report,
                         const cox::Config& config, Detail detail) {
  std::string text = effects_table(report.effects, detail);
  if (detail == Detail::full) text += score_lines(report.scores);
  text += findings_table(report.findings, detail);
  text += loss_line(summary);
  text += pace_line(report);
  if (report.decisions > 0) {
    text += fmt::format("decisions: {} with a reason, also those to change nothing; {} new plans\n",
                        report.decisions, report.plans);
  }
  text += memory_line(report);
  text += cost_line(report, config.run.price_per_device_hour);
  if (!config.run.directory.empty()) text += "run directory: " + config.run.directory + "\n";
  return text;
}

}  // namespace gpt2
