// Runs the reference task on the ranks of a session. cox::Reducer averages the gradients, and also
// gets a parameter that nothing uses.
#pragma once

#include <memory>

#include "coxswain/session.h"
#include "sdk/examples/gpt2/reference.h"

namespace gpt2 {

// BlocksOf selects the model whose blocks the session's plans name. A session accepts one model,
// before its first step.
enum class BlocksOf { this_model, another_model };

// `micro_batch` is the number of rows of a micro-batch; 0 = all of the rank's at once. REQUIRES:
// `session` outlives the trainer.
std::unique_ptr<ReferenceTrainer> session_trainer(cox::Session& session, const ReferenceTask& task,
                                                  std::int64_t micro_batch, BlocksOf blocks);

}  // namespace gpt2
