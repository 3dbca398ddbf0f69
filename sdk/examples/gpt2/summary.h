// What the example says at its end. Pure but for the session it asks.
#pragma once

#include <optional>
#include <string>

#include "coxswain/session.h"
#include "coxswain/trainer.h"

namespace gpt2 {

struct RunSummary {
  std::optional<double> first_loss;
  double last_loss = 0;
  double tokens_per_second = 0;
  cox::TrainingProgress progress;

  void note_loss(double loss) {
    if (!first_loss) first_loss = loss;
    last_loss = loss;
  }
};

// A line each, or nothing where there is nothing to say.
std::string memory_line(const cox::SessionReport& report);
std::string cost_line(const cox::SessionReport& report, double price_per_device_hour);

std::string summary_text(const RunSummary& summary, const cox::Session& session);

}  // namespace gpt2
