// StepRecord records a loop's steps as text, on one rank and in program order: collective calls
// with their sizes, ballots, and the calls and reports of actuators. No line depends on time, on
// the machine or on its load, so equal loops have equal records.
//
//   Recording recording;
//   Session session = recording.start({"--cox.reduction.bucket_bytes=1KiB"});
//   for (...) {
//     recording.next_step();   // after the end of a step, before the next ballot: on every rank
//     ...
//   }
//   recording.end();
//
// The control plane works beside the loop, so next_step() waits until the control plane is idle:
// the last step's reports were decided upon, and every rank holds the following plan. Training
// thread of a rank under mpiexec.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/units.h"
#include "coxswain/session.h"

namespace sdk_test {

class StepRecord {
 public:
  void note(std::string line) { parts_.back().push_back(std::move(line)); }
  // Begins another part of the record: the next step, or the end.
  void begin_part() { parts_.emplace_back(); }
  std::size_t steps() const { return parts_.size() - 1; }  // started so far

  // Returns the start, each kind of step once under a letter, the order of the letters ("a*3 b"),
  // and the end. REQUIRES: the last part is the end.
  std::string text() const;
  // Returns the collective calls of each step, without the start and the end.
  std::vector<std::string> calls() const;

 private:
  std::vector<std::vector<std::string>> parts_{1};
};

class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Starts a session with recorded calls and actuators. `policies` are those of the options;
  // built-in policies are off. Call once.
  cox::Session start(const std::vector<std::string>& flags, cox::PolicySet policies = {});

  // Begins a part of the record. Collective, unless free_running() was called.
  void next_step();
  void note(std::string line);
  // Stops waiting for the control plane between steps, for loops whose ranks part. The record no
  // longer shows which reports were decided upon.
  void free_running();
  // Begins the last part of the record. Waits as next_step() does.
  void end();

  // Returns the records of all ranks on rank 0; equal records appear once. Collective.
  std::string text_of_all() const;

  // Returns StepRecord::calls() of this rank.
  std::vector<std::string> calls() const;

  static int rank();
  static int world_size();

 private:
  struct Taps;
  std::unique_ptr<Taps> taps_;
};

}  // namespace sdk_test
