// FindingsWatch says while a job runs what `cox analyze` would say of its newest steps. It is a
// StepSink in front of another one: record() keeps the round (microseconds; one copy of the
// reports) and hands it on. A thread of the watch's own, at the lowest priority, looks at the
// window now and then: not before kLookSeconds have passed, and not before a hundred times what the
// last look took, so that it never takes more than a hundredth of a core.
//
//   control loop -> FindingsWatch -> next sink
//                        \-> thread: record_of() -> own rules -> on_look
//
// record() runs on the coordinator's thread; the rest may be called from any thread.
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
  static constexpr double kPauseFactor = 99;  // of a look's time

  using Found = std::shared_ptr<const FindingsView>;

  // `next` must outlive this. `on_look` gets every new view, on the thread that looked.
  // `on_trouble` gets the reason why the thread cannot start or ends early: only look() and
  // finish() look then.
  FindingsWatch(StepSink& next, std::function<void(Found)> on_look,
                const std::function<void(const Status&)>& on_trouble = {});
  ~FindingsWatch() override;
  FindingsWatch(const FindingsWatch&) = delete;
  FindingsWatch& operator=(const FindingsWatch&) = delete;

  void record(const StepRecord& record) override;

  // Sets FLOPs of a rank's step and the peak of its device, from the next look on.
  void set_flops(const diagnosis::BudgetOptions& options);

  // Returns what the window says now: looks at once where there are rounds that nobody has looked
  // at. Takes as long as a look (docs/diagnosis.md). Never null.
  Found look();

  // Ends the thread, after one more look.
  void finish();

 private:
  void work();
  void look_and_tell();

  StepSink& next_;
  const std::function<void(Found)> on_look_;
  RoundShelf shelf_;  // of the recording thread

  std::mutex looking_;                                     // held by the one thread that looks
  Found newest_ = std::make_shared<const FindingsView>();  // of the thread that looks

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<std::shared_ptr<const LiveRound>> rounds_;
  LiveFacts facts_;
  std::uint64_t recorded_ = 0;  // rounds
  std::uint64_t looked_at_ = 0;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace cox::metrics
