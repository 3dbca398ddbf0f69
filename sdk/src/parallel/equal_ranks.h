// Equal ranks: before the first step ranks must have the same tensors in the same order, and rank
// 0's values are copied to all. After it, BufferSync keeps buffers equal that steps change (running
// statistics of batch normalisation). Collective, blocking by polling. Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::detail {

// Returns the list with every tensor once: a parameter that two modules share has one gradient.
std::vector<at::Tensor> each_once(std::vector<at::Tensor> tensors);

// Returns invalid_argument on every rank, naming the ranks whose tensors differ from rank 0's in
// number, shape, type or order.
Status check_equal_layout(transport::Communicator& communicator,
                          const std::vector<at::Tensor>& parameters,
                          const std::vector<at::Tensor>& buffers);

// Overwrites the tensors in place with rank 0's bytes. REQUIRES: equal layouts.
Status broadcast_from_root(transport::Communicator& communicator,
                           const std::vector<at::Tensor>& tensors);

// BufferSync gives all ranks the buffers of the lowest rank that had samples. A buffer counts as
// changed when its version has moved, so models without such buffers send nothing.
class BufferSync {
 public:
  explicit BufferSync(std::vector<at::Tensor> buffers);

  // Returns this rank's contribution to StepBallot::buffers_from_min.
  std::uint64_t vote(RankId rank) const;
  // Copies the buffers of rank `from`, as the merged ballot has it, to all; ~0 = nobody's changed.
  Status follow(std::uint64_t from, transport::Communicator& ranks,
                const transport::WaitPolicy& wait);

 private:
  std::uint64_t versions() const;

  std::vector<at::Tensor> buffers_;
  std::uint64_t seen_ = 0;
};

}  // namespace cox::detail
