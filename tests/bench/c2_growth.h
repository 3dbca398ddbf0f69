// Second half of C2: the additional time of a training step with Coxswain.
#pragma once

#include "coxswain/session.h"
#include "tests/bench/line.h"

namespace cox::bench {

// small: 4 sequences a rank, nothing clipped. demo: the training of scripts/demo, 16 sequences over
// all ranks, gradients clipped at 1.
enum class GrowingStep { small, demo };

// Alternates a full cox::Trainer (coordinator, telemetry, run directory) with a plain loop in this
// process. Rank 0 prints lines. Collective; once a session.
void measure_growth(Session& session, GrowingStep which, Effort effort);

}  // namespace cox::bench
