// BufferSync: keeps buffers that steps change (running statistics of batch normalisation) equal on
// all ranks: those of the lowest rank that had samples count. A buffer counts as changed when its
// version has moved, so models without such buffers send nothing. Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::detail {

class BufferSync {
 public:
  explicit BufferSync(std::vector<at::Tensor> buffers);

  // What this rank brings into the ballot (StepBallot::buffers_from_min).
  std::uint64_t vote(RankId rank) const;
  // After the ballot: copies the buffers of rank `from` to all; ~0 = nobody's changed. Collective.
  Status follow(std::uint64_t from, transport::Communicator& ranks,
                const transport::WaitPolicy& wait);

 private:
  std::uint64_t versions() const;

  std::vector<at::Tensor> buffers_;
  std::uint64_t seen_ = 0;
};

}  // namespace cox::detail
