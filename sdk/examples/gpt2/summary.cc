#include "sdk/examples/gpt2/summary.h"

#include <cstdio>

namespace gpt2 {

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
  std::string result = text;
  const std::string& directory = session.config().run.directory;
  if (!directory.empty()) result += "run directory: " + directory + "\n";
  return result;
}

}  // namespace gpt2
