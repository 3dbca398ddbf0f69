// FindingsWatch analyses the newest steps of a running job as `cox analyze` would. The watch is a
// StepSink in front of another sink: record() keeps the round (microseconds; one copy of the
// reports) and passes the record on. A thread of the lowest priority analyses the window every
// kLookSeconds or less often. Pauses last at least 99 times as long as the last analysis, which
// limits the thread to a hundredth of a core.
//
//   control loop -> FindingsWatch -> next sink
//                        \-> thread: record_of() -> own rules -> on_look
//
// record() runs on the coordinator's thread; any thread may call the rest.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/live_window.h"

namespace cox::metrics {

class FindingsWatch final : public StepSink {
 public:
  static constexpr std::chrono::duration<double> kLookSeconds{5};
  static constexpr double kPauseFactor = 99;  // times the duration of an analysis

  using Found = std::shared_ptr<const FindingsView>;

  // `next` must outlive the watch. `on_look` receives every new view, on the thread that made it.
  // `on_trouble` receives the reason if the thread cannot start or ends early; then only look() and
  // finish() analyse.
  FindingsWatch(StepSink& next, std::function<void(Found)> on_look,
                const std::function<void(const Status&)>& on_trouble = {});
  ~FindingsWatch() override;
  FindingsWatch(const FindingsWatch&) = delete;
  FindingsWatch& operator=(const FindingsWatch&) = delete;

  void record(const StepRecord& record) override;

  // Sets the FLOPs of a rank's step and the peak of its device, from the next analysis on.
  void set_flops(const diagnosis::BudgetOptions& options);

  // Returns the findings of the window as of now, never null. Analyses first if rounds are new,
  // which blocks for the time of an analysis (docs/diagnosis.md).
  Found look();

  // Runs one more analysis and ends the thread.
  void finish();

 private:
  void work();
  void look_and_tell();

  StepSink& next_;
  const std::function<void(Found)> on_look_;
  RoundShelf shelf_;  // used by the recording thread

  std::mutex looking_;                                     // held by the one thread that analyses
  Found newest_ = std::make_shared<const FindingsView>();  // guarded by looking_

  std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  std::deque<std::shared_ptr<const LiveRound>> rounds_;
  LiveFacts facts_;
  std::uint64_t recorded_ = 0;  // rounds
  std::uint64_t looked_at_ = 0;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace cox::metrics
