// Dataset turns sample numbers into tensors; the sample plan (sample_plan.h) decides which numbers
// a rank requests. Implementations hold no position and are const, so several threads may read one
// object at once. With TrainerOptions::prefetch a thread of the trainer calls get(). Constructors
// throw cox::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace cox {

// Samples lie along dimension 0 of both tensors. Either tensor may be empty, with samples == 0.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
  std::int64_t samples = 0;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  // Returns the number of samples in the whole set: at least 1, equal on all ranks.
  virtual std::int64_t size() const = 0;

  // Returns the samples with the given numbers, in the given order; numbers may repeat. The tensors
  // are new and on the CPU; for an empty list of numbers the tensors have 0 rows. Must not draw
  // from torch's default generators, which belong to the forward pass. REQUIRES: each index in [0,
  // size()).
  virtual Batch get(std::span<const std::int64_t> indices) const = 0;
};

// ByteTextDataset serves a text as bytes, for models that predict the next byte. Inputs of sample i
// are the bytes [i * block, (i + 1) * block); targets are the bytes one position further. Both are
// int64 [samples, block]. Bytes behind the last whole block are not used. Each sample is read from
// the file when a step needs it; all ranks share the system's page cache.
class ByteTextDataset final : public Dataset {
 public:
  // REQUIRES: block >= 1. Throws cox::Error if the file is missing, unreadable, empty, or shorter
  // than one block and its target. get() throws cox::Error if the file was truncated afterwards.
  ByteTextDataset(const std::filesystem::path& file, std::int64_t block);
  ~ByteTextDataset() override;

  std::int64_t size() const override { return size_; }
  Batch get(std::span<const std::int64_t> indices) const override;

 private:
  class File;

  std::unique_ptr<const File> file_;
  std::int64_t block_;
  std::int64_t size_;
};

}  // namespace cox
