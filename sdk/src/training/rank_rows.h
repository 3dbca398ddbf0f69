// State that each rank of an adopted loop has of its own, as rows of a save: random numbers, the
// position in a sampler, and buffers. Training thread only; does not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/training/adopted_models.h"

namespace cox::detail {

// RankRow is one such state, in the rows of a save.
class RankRow final : public Saving {
 public:
  struct Parts {
    std::string name;   // name of the row
    std::string title;  // for messages: "the random numbers"
    std::function<std::string()> bytes;
    std::function<Status(const std::string&)> take;
  };
  explicit RankRow(Parts parts) : parts_(std::move(parts)) {}

  const SavedRow* saved_row() const override { return &row_; }
  std::vector<double> save() const override;
  Status load(std::span<const double> row) override;

 private:
  const Parts parts_;
  const SavedRow row_{parts_.name.c_str(), parts_.title.c_str()};
};

// Returns the state of the device's default generator as a row.
RankRow::Parts row_of_generator(const c10::Device& device);
// Returns a row that says which of the parameters have a gradient. A resume gives these zeros: a
// loop that clears gradients in place goes on with zeros, where an undefined gradient would make
// its optimizer leave the parameter out. `parameters` is called whenever the row is saved or
// loaded.
RankRow::Parts row_of_gradients(std::function<std::vector<at::Tensor>()> parameters);
// Returns the state of a torch sampler as a row. Each rank has its own position in its own order.
RankRow::Parts row_of(std::string_view name, TorchSampler& sampler);

// OwnBuffers saves buffers that may differ between ranks. The ranks of an adopted loop begin with
// equal buffers, and each rank continues with its own: running statistics, counters. A save holds
// rank 0's buffers among its tensors, and each rank's own ones in its row. A row has only the hash
// of a large buffer that the rank did not change, because such buffers are mostly constants.
class OwnBuffers {
 public:
  // Records the values of the buffers, which are equal on all ranks at the time of the call.
  void note_equal(const AdoptedModels& models);
  // Returns the buffers as bytes; empty if there are none.
  std::string bytes() const;
  // Copies the result of bytes() into the buffers. Returns invalid_argument for other buffers, and
  // failed_precondition if rank 0 changed a large buffer that this rank had not changed.
  Status take(const std::string& bytes) const;

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<std::uint64_t> hashes_;  // when they were equal
};

}  // namespace cox::detail
