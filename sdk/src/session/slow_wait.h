// SlowWait: says once that this rank waits for the others longer than anybody expects. Between the
// polls of one wait. Time is passed in. Training thread.
#pragma once

#include <chrono>
#include <string>

#include "coordinator/core/log.h"

namespace cox::detail {

class SlowWait {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPatience{30};

  // `where`: the call that waits. `log` must outlive this.
  SlowWait(const Log& log, const char* where, Clock::time_point begin)
      : log_(log), where_(where), due_(begin + kPatience) {}

  void look(Clock::time_point now) {
    if (is_told_ || now < due_) return;
    is_told_ = true;
    log_.warning(
        std::string(where_) + " has waited " + std::to_string(kPatience.count()) +
        " s for the other ranks; one may be saving or evaluating, one whose loop has ended "
        "goes on with Reducer::join(); the status page shows which is behind");
  }

 private:
  const Log& log_;
  const char* where_;
  Clock::time_point due_;
  bool is_told_ = false;
};

}  // namespace cox::detail
