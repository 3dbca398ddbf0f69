// The reference task on the ranks of a session: gradients are averaged by cox::Reducer.
#pragma once

#include <memory>

#include "coxswain/session.h"
#include "sdk/examples/gpt2/reference.h"

namespace gpt2 {

// `session` must outlive the trainer; it has begun no step.
std::unique_ptr<ReferenceTrainer> session_trainer(cox::Session& session, const ReferenceTask& task);

}  // namespace gpt2
