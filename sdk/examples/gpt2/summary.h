// What the example says at its start and its end. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/decide/effects.h"
#include "coordinator/decide/policy_score.h"
#include "coxswain/session.h"
#include "sdk/examples/gpt2/options.h"

namespace gpt2 {

struct RunSummary {
  std::optional<double> first_loss;
  double last_loss = 0;
  double tokens_per_second = 0;
  std::uint64_t steps = 0;
  bool stopped = false;  // before the last step, as asked

  void note_loss(double loss) {
    if (!first_loss) first_loss = loss;
    last_loss = loss;
  }
};

// Says what will be trained. A person reads it while the first step is prepared.
std::string start_line(const Options& options, int world_size);

// Says who was slowest when the run ended, and in what.
std::string pace_line(const cox::SessionReport& report);
// A line each, or nothing where there is nothing to say.
std::string memory_line(const cox::SessionReport& report);
std::string cost_line(const cox::SessionReport& report, double price_per_device_hour);

// The closing table: each change and slow rank with its reason, what was promised of it, what was
// measured before and after, and what it came to. Empty where nothing was decided.
std::string effects_table(const cox::EffectList& effects);
// A line for each policy whose changes were measured: how many helped, and the seconds.
std::string score_lines(const std::vector<cox::PolicyScore>& scores);

// The closing table of findings: what the newest steps lost and what to change, what costs most
// first. Empty where nothing was found.
std::string findings_table(const std::vector<cox::ReportedFinding>& findings);

std::string summary_text(const RunSummary& summary, const cox::SessionReport& report,
                         const cox::Config& config);

}  // namespace gpt2
