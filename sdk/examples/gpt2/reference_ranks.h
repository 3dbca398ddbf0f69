// Runs the reference task on the ranks of a session, with cox::Reducer for the average of
// gradients.
#pragma once

#include <memory>

#include "coxswain/session.h"
#include "sdk/examples/gpt2/reference.h"

namespace gpt2 {

// BlocksOf selects the model whose blocks the session steers: the task's model, or another one that
// the session has accepted already. A session accepts one model, before its first step. With
// another_model, the Reducer also gets a parameter that nothing uses.
enum class BlocksOf { this_model, another_model };

// Returns a trainer on the session's ranks. `micro_batch` is the number of rows of a micro-batch; 0
// = all rows of the rank at once. REQUIRES: `session` outlives the trainer.
std::unique_ptr<ReferenceTrainer> session_trainer(cox::Session& session, const ReferenceTask& task,
                                                  std::int64_t micro_batch, BlocksOf blocks);

}  // namespace gpt2
