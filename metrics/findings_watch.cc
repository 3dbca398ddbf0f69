#include "metrics/findings_watch.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "coordinator/io/thread.h"

namespace cox::metrics {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kLowest = 19;  // the lowest priority of nice(1)

}  // namespace

FindingsWatch::FindingsWatch(StepSink& next, std::function<void(Found)> on_look,
                             const std::function<void(const Status&)>& on_trouble)
    : next_(next), on_look_(std::move(on_look)) {
  auto started = io::start_thread(
      "findings", [this] { work(); }, on_trouble);
  if (started.ok()) thread_ = *std::move(started);
  if (!started.ok() && on_trouble) on_trouble(started.status());
}

FindingsWatch::~FindingsWatch() {
  finish();
}

void FindingsWatch::record(const StepRecord& record) {
  auto round = shelf_.round_of(record);
  const std::size_t most = window_rounds(static_cast<std::size_t>(record.job.world_size));
  {
    const std::lock_guard lock(mutex_);
    diagnosis::keep_newest(facts_.decisions, record.decision.reasons);
    if (facts_.node_of_rank != record.job.node_of_rank)
      facts_.node_of_rank = record.job.node_of_rank;
    if (round) {
      rounds_.push_back(std::move(round));
      ++recorded_;
    }
    while (rounds_.size() > most) rounds_.pop_front();
  }
  next_.record(record);
}

void FindingsWatch::set_flops(const diagnosis::BudgetOptions& options) {
  const std::lock_guard lock(mutex_);
  facts_.options = options;
}

FindingsWatch::Found FindingsWatch::look() {
  const std::lock_guard looking(looking_);
  look_and_tell();
  return newest_;
}

// REQUIRES: looking_ is held.
void FindingsWatch::look_and_tell() {
  LiveRounds rounds;
  LiveFacts facts;
  {
    const std::lock_guard lock(mutex_);
    if (recorded_ == looked_at_) return;
    looked_at_ = recorded_;
    rounds.assign(rounds_.begin(), rounds_.end());
    facts = facts_;
  }
  const auto began = SteadyClock::now();
  FindingsView found = findings_of(rounds, facts);
  found.look_seconds = Seconds(SteadyClock::now() - began).count();
  newest_ = std::make_shared<const FindingsView>(std::move(found));
  on_look_(newest_);
}

void FindingsWatch::work() {
  setpriority(PRIO_PROCESS, 0, kLowest);  // affects this thread alone, on Linux
  Seconds pause = kLookSeconds;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, pause, [this] { return is_over_; })) return;
    }
    const double took = look()->look_seconds;
    pause = std::max(kLookSeconds, Seconds(kPauseFactor * took));
  }
}

void FindingsWatch::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (is_over_) return;
    is_over_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  look();
}

}  // namespace cox::metrics
