// One set of decisions for the stages so far, reduced to what the rest of the step can feel of it.
//
// Copies out go in order, so the last offloaded stage is back on the device after all the others
// have left it. Hence only that one can wait for a copy-out, and only before its own backward can
// anything still be on its way out; then compute has not waited yet. Labels therefore differ in
// whether further stages will be offloaded: as long as they will, what is on its way out matters to
// forward passes alone. Once they will not, `need_us` says how much added time the rest must bring
// so that copies are through in time, and `floor_us` what the step adds at least.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/completion_bound.h"
#include "coordinator/planner/step_tables.h"

namespace cox::planner {

// A stage whose bytes were sent out, and the one sent before it.
struct Departure {
  std::int32_t previous = -1;    // index, -1 = none
  std::int64_t end_us = 0;       // when the copy is through
  std::int64_t total_bytes = 0;  // sent up to and with this one
};

struct Label {
  std::int64_t added_us = 0;
  std::int64_t kept_bytes = 0;
  std::int64_t floor_us = 0;
  std::int64_t need_us = 0;
  std::int64_t promise_us = 0;  // the whole step adds at least this
  std::int64_t tier_bytes = 0;
  std::int32_t recomputed = 0;
  std::int32_t departure = -1;  // the newest
  std::int32_t trace = -1;      // how it came about
  bool is_leaving = false;      // the last stage was offloaded, and its bytes are being copied
  std::uint8_t action = 0;      // of the newest stage
  Further further = Further::none;
};

class Departures {
 public:
  std::int32_t add(std::int32_t previous, std::int64_t ready_us, std::int64_t copy_us,
                   std::int64_t bytes);
  // Bytes of the chain up to `newest` that are not out yet at `time`.
  std::int64_t bytes_after(std::int32_t newest, std::int64_t time) const;
  // The same, less what a copy in progress has moved already.
  std::int64_t bytes_to_move(std::int32_t newest, std::int64_t time, std::int64_t per_ms) const;
  // The earliest time from which at most `room` bytes are left; 0 if that many never wait.
  std::int64_t time_within(std::int32_t newest, std::int64_t room) const;
  std::int64_t end_us(std::int32_t newest) const {
    return newest < 0 ? 0 : all_[index(newest)].end_us;
  }
  std::int32_t previous(std::int32_t newest) const { return all_[index(newest)].previous; }
  // Whether at every time from `now` on, a's kept and leaving bytes are no more than b's.
  bool never_more(const Label& a, const Label& b, std::int64_t now) const;

 private:
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  std::vector<Departure> all_;
};

// Whether whatever completes `b` completes `a` too, at no higher cost. Both at the same stage.
bool dominates(const Label& a, const Label& b, const StepTables& tables, const Departures& out,
               std::int64_t now);

}  // namespace cox::planner
