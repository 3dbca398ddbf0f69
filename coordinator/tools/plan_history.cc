#include "coordinator/tools/plan_history.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <variant>

#include "coordinator/core/plan.h"
#include "coordinator/runtime/journal_reader.h"

namespace cox::tools {
namespace {

constexpr std::size_t kMostEvents = 200;
constexpr std::size_t kFirstEvents = 50;  // of these, kept from the beginning
constexpr std::size_t kMostLines = 12;    // of changes, and of reasons, of an event

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

// Takes the entries in order and keeps what changed.
class Collector {
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
    if (events.size() == kMostEvents) {
      events.erase(events.begin() + kFirstEvents);
      ++history_.left_out;
    }
    events.push_back(std::move(event));
  }

  PlanHistory history_;
  Plan plan_;
  std::uint32_t incarnation_ = 0;
  std::uint64_t rounds_ = 0;  // of this start
};

}  // namespace

PlanHistory plan_history(const std::filesystem::path& run) {
  const std::filesystem::path path = run / "journal.cox";
  std::error_code error;
  const auto kind = std::filesystem::symlink_status(path, error).type();
  if (error || kind == std::filesystem::file_type::not_found) return {};
  Collector collector;
  auto journal = runtime::JournalReader::open(path, io::Links::refused);
  if (!journal.ok()) return collector.finish(journal.status().message());
  for (;;) {
    const auto entry = journal->next();
    if (!entry.ok()) return collector.finish(entry.status().message());
    if (std::holds_alternative<runtime::JournalEnd>(*entry)) return collector.finish({});
    if (const auto* start = std::get_if<wire::JournalStart>(&*entry)) collector.take(*start);
    if (const auto* round = std::get_if<wire::JournalRound>(&*entry)) collector.take(*round);
  }
}

}  // namespace cox::tools
