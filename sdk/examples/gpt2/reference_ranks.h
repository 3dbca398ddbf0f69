// The reference task on the ranks of a session: gradients are averaged by cox::Reducer, which is
// also given a parameter that nothing uses.
#pragma once

#include <memory>

#include "coxswain/session.h"
#include "sdk/examples/gpt2/reference.h"

namespace gpt2 {

// Which model's blocks the session's plans speak of; it takes one, before its first step.
enum class BlocksOf { this_model, another_model };

// `session` must outlive the trainer. `micro_batch`: rows of a micro-batch; 0 = all of the rank's
// at once.
std::unique_ptr<ReferenceTrainer> session_trainer(cox::Session& session, const ReferenceTask& task,
                                                  std::int64_t micro_batch, BlocksOf blocks);

}  // namespace gpt2
