// StepRecord: what a loop does in its steps, as text, on one rank and in the order of the program:
// calls of all ranks with their sizes, ballots, and what actuators are told and report. No line
// depends on time, on the machine or on its load, so a loop that does the same has the same record.
//
//   Recording recording;
//   Session session = recording.start({"--cox.reduction.bucket_bytes=1KiB"});
//   for (...) {
//     recording.next_step();   // after the end of a step, before the next ballot: on every rank
//     ...
//   }
//   recording.end();
//
// The control plane works beside the loop, so next_step() waits until it has nothing left to do:
// the reports of the last step were decided upon, and every rank holds the plan that followed.
// Training thread of a rank under mpiexec.
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
  // Lines from here on belong to another part of the record: the next step, or the end.
  void begin_part() { parts_.emplace_back(); }
  std::size_t steps() const { return parts_.size() - 1; }  // begun so far

  // Returns the start, each kind of step once under a letter, the order of the letters ("a*3 b"),
  // and the end. REQUIRES: the last part is the end.
  std::string text() const;
  // Returns the calls of all ranks in each step but the start and the end.
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

  // Starts a session whose calls and actuators are recorded. `policies` are those of the options;
  // the built-in ones are off. Once.
  cox::Session start(const std::vector<std::string>& flags, cox::PolicySet policies = {});

  // Begins a part of the record. Collective, unless free_running() was called.
  void next_step();
  void note(std::string line);
  // Ranks no longer wait for the control plane between steps, for loops whose ranks part. Which
  // reports have been decided upon is no longer recorded.
  void free_running();
  // Begins the last part of the record. Waits as next_step() does.
  void end();

  // Returns the records of all ranks on rank 0, those that are equal once. Collective.
  std::string text_of_all() const;

  // Returns what StepRecord::calls() does, of this rank.
  std::vector<std::string> calls() const;

  static int rank();
  static int world_size();

 private:
  struct Taps;
  std::unique_ptr<Taps> taps_;
};

}  // namespace sdk_test
