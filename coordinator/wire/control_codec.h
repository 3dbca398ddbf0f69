// Core values as bytes and back, for the journal and the saved control state. Doubles and floats
// come back bit for bit (NaN, infinities, -0). The bytes are those of control.proto, whose types
// stay inside this folder; protobuf bytes are not canonical, so compare values, never bytes.
// Pure functions, any thread. Parsing treats its bytes as hostile: data_loss for what is no such
// message, resource_exhausted for one with more parts than its limits allow, before memory is
// spent on them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/decide.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/status.h"
#include "coordinator/core/step_signals.h"

namespace cox::wire {

inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 28;

// The most parts that a message of a job may have.
struct ParseLimits {
  std::size_t ranks = static_cast<std::size_t>(kMaxRanks);
  std::size_t blocks = kMaxBlocks;

  constexpr std::size_t faults() const { return 16 * ranks + 4096; }
  constexpr std::size_t reasons() const { return 4 * ranks + 65536; }
};
ParseLimits limits_of(const JobFacts& job);

// Everything but the signals that Decide needs to run a journal again.
struct JournalStart {
  JobFacts job;
  std::string config;  // text() of the configuration
  ControlState state;
  std::vector<std::string> policies;  // names, in the order in which Decide asks them
  std::optional<Decision> first{};    // begin_job()'s answer to `state`; empty: it had none
};

// One round: all that Decide saw, and what it answered. `decision.summary` is not carried.
struct JournalRound {
  StepSignals signals;
  Decision decision;
};

std::string serialize(const JobFacts& value);
std::string serialize(const Reason& value);
std::string serialize(const StepSignals& value);
std::string serialize(const ControlState& value);
std::string serialize(const Decision& value);
std::string serialize(const JournalStart& value);
// A JournalRound from its parts.
std::string serialize(const StepSignals& signals, const Decision& decision);

Result<JobFacts> parse_job_facts(std::string_view bytes);
Result<Reason> parse_reason(std::string_view bytes);
Result<StepSignals> parse_step_signals(std::string_view bytes, const ParseLimits& limits);
Result<ControlState> parse_control_state(std::string_view bytes);
Result<Decision> parse_decision(std::string_view bytes, const ParseLimits& limits);
Result<JournalStart> parse_journal_start(std::string_view bytes);
Result<JournalRound> parse_journal_round(std::string_view bytes, const ParseLimits& limits);

}  // namespace cox::wire
