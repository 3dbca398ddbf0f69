// The mean loss of a model over a data set that it is not trained on. Ranks take whole batches of
// it, and losses are added up in the order of the batches: the result does not depend on the number
// of ranks as long as batches do not. Collective; the training thread, also within an open step,
// whose time it is no part of.
#pragma once

#include <cstdint>
#include <functional>

#include "coxswain/dataset.h"
#include "coxswain/session.h"

namespace cox::detail {

// The model is in evaluation mode meanwhile; every module is put back into the mode it had. Throws
// the same cox::Error on all ranks when `loss` or the data set throws on one. Requires: batch >= 1.
double evaluate(Session& session, torch::nn::Module& model, const Dataset& dataset,
                std::int64_t batch, const std::function<at::Tensor(const Batch&)>& loss);

}  // namespace cox::detail
