#include "coordinator/tools/journal_decisions.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/core/text.h"
#include "coordinator/io/file.h"
#include "coordinator/runtime/journal_reader.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;
using diagnosis::PlanEvent;
using diagnosis::PlanHistory;

constexpr std::uintmax_t kMaxQuickBytes = std::uintmax_t{256} << 20;
constexpr std::size_t kMostLines = 12;  // of changes, and of reasons, of an event

std::vector<std::string> shortened(std::vector<std::string> lines) {
  if (lines.size() <= kMostLines) return lines;
  const std::size_t more = lines.size() - kMostLines;
  lines.resize(kMostLines);
  lines.push_back("and " + std::to_string(more) + " more");
  return lines;
}

std::vector<std::string> sentences_of(const std::vector<Reason>& reasons) {
  std::vector<std::string> out;
  for (const Reason& reason : reasons)
    out.push_back(concat(reason.policy, ": ", reason.text, " (", reason.outcome, ")"));
  return out;
}

std::uint64_t newest_step(const StepSignals& signals) {
  std::int64_t step = 0;
  for (const RankSignal& report : signals.reports)
    step = std::max(step, static_cast<std::int64_t>(report.step.value()));
  return static_cast<std::uint64_t>(step);
}

// Takes the entries of a journal in order and keeps what changed.
class PlanCollector {
 public:
  void take(const wire::JournalStart& start) {
    // The job was described anew before its first round: the earlier answer was never used.
    std::vector<PlanEvent>& events = history_.events;
    const bool is_anew =
        rounds_ == 0 && !events.empty() && events.back().incarnation == start.job.incarnation;
    if (is_anew) events.pop_back();
    rounds_ = 0;
    plan_ = start.state.plan;
    incarnation_ = start.job.incarnation;
    if (start.first && start.first->plan) add(*start.first, 0, 0);
  }
  void take(const wire::JournalRound& round) {
    ++rounds_;
    if (!round.decision.plan) return;
    add(round.decision, round.signals.round.value(), newest_step(round.signals));
  }
  PlanHistory finish(std::string gap) {
    history_.gap = std::move(gap);
    return std::move(history_);
  }

 private:
  void add(const Decision& decision, std::uint64_t round, std::uint64_t step) {
    PlanEvent event{incarnation_, decision.plan->id.number, round, step, {}, {}};
    event.changes = shortened(diff(plan_, *decision.plan));
    event.reasons = shortened(sentences_of(decision.reasons));
    plan_ = *decision.plan;
    std::vector<PlanEvent>& events = history_.events;
    if (events.size() == PlanHistory::kMost) {
      events.erase(events.begin() + PlanHistory::kFirst);
      ++history_.left_out;
    }
    events.push_back(std::move(event));
  }

  PlanHistory history_;
  Plan plan_;
  std::uint32_t incarnation_ = 0;
  std::uint64_t rounds_ = 0;  // of this start
};

bool is_passed_over(const fs::path& path, JournalSize size) {
  std::error_code error;
  return size == JournalSize::quick && fs::is_regular_file(fs::symlink_status(path, error)) &&
         fs::file_size(path, error) > kMaxQuickBytes;
}

}  // namespace

void read_decisions(const std::string& directory, JournalSize size, diagnosis::RunRecord& run) {
  const fs::path path = fs::path(directory) / "journal.cox";
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return;
  if (is_passed_over(path, size)) {
    run.gaps.push_back("journal.cox is larger than 256 MiB: decisions are not looked at");
    return;
  }
  PlanCollector plans;
  const Status read =
      runtime::read_journal(path, io::Links::refused,
                            {.start =
                                 [&](const wire::JournalStart& start) {
                                   plans.take(start);
                                   if (start.first)
                                     diagnosis::keep_newest(run.decisions, start.first->reasons);
                                 },
                             .round =
                                 [&](const wire::JournalRound& round) {
                                   plans.take(round);
                                   diagnosis::keep_newest(run.decisions, round.decision.reasons);
                                 }});
  if (!read.ok()) run.gaps.push_back("journal.cox: " + read.message());
  run.plans = plans.finish(read.ok() ? std::string() : read.message());
}

}  // namespace cox::tools
