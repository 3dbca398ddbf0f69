#include "sdk/examples/gpt2/summary.h"

#include <cstdio>

namespace gpt2 {
namespace {

double mib(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

std::string memory_line(const cox::SessionReport& report) {
  if (!report.memory_planned || report.memory_peak_bytes <= 0) return {};  // not predicted
  char text[256];
  if (report.memory_saved_bytes <= 0) {
    std::snprintf(text, sizeof(text), "memory: at most %.1f MiB on a rank (predicted)\n",
                  mib(report.memory_peak_bytes));
  } else {
    std::snprintf(text, sizeof(text),
                  "memory: at most %.1f MiB on a rank; up to %.1f MiB of a rank are saved, against "
                  "keeping every block, for up to +%.1f %% of time (predicted)\n",
                  mib(report.memory_peak_bytes), mib(report.memory_saved_bytes),
                  100 * report.memory_added_ratio);
  }
  return text;
}

std::string cost_line(const cox::SessionReport& report, double price_per_device_hour) {
  if (price_per_device_hour <= 0) return {};
  char text[256];
  std::snprintf(text, sizeof(text), "cost: %.4g at %.4g per device-hour", report.cost,
                price_per_device_hour);
  std::string line = text;
  if (report.memory_planned) {
    std::snprintf(text, sizeof(text), "; the time that saves memory costs %.4g per hour",
                  report.memory_cost_hourly);
    line += text;
  }
  return line + "\n";
}

std::string summary_text(const RunSummary& summary, const cox::Session& session) {
  const cox::SessionReport report = session.report();
  char text[512];
  std::snprintf(text, sizeof(text),
                "loss %.4f -> %.4f in %llu steps%s, %.0f tokens/s\n"
                "slowest rank: %d (%.2fx the fastest), most of it in %s\n"
                "decisions: %llu with a reason, %llu plans%s%s\n",
                summary.first_loss.value_or(summary.last_loss), summary.last_loss,
                static_cast<unsigned long long>(summary.progress.step),
                summary.progress.stopped ? " (stopped early, as asked)" : "",
                summary.tokens_per_second, report.slowest_rank, report.slowdown_ratio,
                std::string(cox::to_string(report.slowest_phase)).c_str(),
                static_cast<unsigned long long>(report.decisions),
                static_cast<unsigned long long>(report.plans),
                report.last_reason.empty() ? "" : "; the last: ", report.last_reason.c_str());
  std::string result = text + memory_line(report);
  result += cost_line(report, session.config().run.price_per_device_hour);
  const std::string& directory = session.config().run.directory;
  if (!directory.empty()) result += "run directory: " + directory + "\n";
  return result;
}

}  // namespace gpt2
