// Texts of the example at its start and its end. Pure functions.
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
  bool stopped = false;  // before the last step, on request

  void note_loss(double loss) {
    if (!first_loss) first_loss = loss;
    last_loss = loss;
  }
};

// Returns a description of the training, which a person reads while the first step is prepared.
std::string start_line(const Options& options, int world_size);

// Returns the slowest rank at the end of the run, and its slowest phase.
std::string pace_line(const cox::SessionReport& report);
// Return a line each, or an empty text if there is nothing to report.
std::string memory_line(const cox::SessionReport& report);
std::string cost_line(const cox::SessionReport& report, double price_per_device_hour);

// The short form of a table has one line of at most 100 characters for each entry, and at most 12
// entries, the newest ones.
enum class Detail { short_form, full };

// Returns the closing table: each change and slow rank with the outcome and the prediction. The
// full form adds reasons, intervals and peaks. Empty if there were no decisions.
std::string effects_table(const cox::EffectList& effects, Detail detail);
// Returns a line for each policy whose changes were measured: the number that helped, and the
// seconds.
std::string score_lines(const std::vector<cox::PolicyScore>& scores);

// Returns the closing table of findings: losses of the newest steps, the most costly first. The
// full form adds details and remedies. Empty if there are no findings.
std::string findings_table(const std::vector<cox::ReportedFinding>& findings, Detail detail);

std::string summary_text(const RunSummary& summary, const cox::SessionReport& report,
                         const cox::Config& config, Detail detail);

}  // namespace gpt2
