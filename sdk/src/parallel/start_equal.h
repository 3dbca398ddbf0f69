// What makes ranks equal before the first step: they must have the same tensors in the same order,
// and rank 0's values are copied to all. Collective, blocking by polling; start-up only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"

namespace cox::detail {

// invalid_argument on every rank, naming the ranks whose tensors differ from rank 0's in number,
// shape, type or order.
Status check_equal_layout(transport::Communicator& communicator,
                          const std::vector<at::Tensor>& parameters,
                          const std::vector<at::Tensor>& buffers);

// Overwrites the tensors in place with rank 0's bytes. Requires: equal layouts.
Status broadcast_from_root(transport::Communicator& communicator,
                           const std::vector<at::Tensor>& tensors);

// Gathers one number from every rank; the result has one entry a rank, on every rank.
Result<std::vector<std::uint64_t>> gather_numbers(transport::Communicator& communicator,
                                                  std::uint64_t mine);

// One outcome for all ranks: ok exactly if it is ok on each, otherwise the error of the lowest rank
// that has one, naming it unless all have the same.
Status agree_on_status(transport::Communicator& communicator, const Status& mine);

// "1, 3, 7": the ranks whose number differs from rank 0's; empty when all agree.
std::string ranks_that_differ(const std::vector<std::uint64_t>& numbers);

}  // namespace cox::detail
