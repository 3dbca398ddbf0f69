// Where samples come from. A Dataset turns sample numbers into tensors; which numbers a rank asks
// for is the sample plan's business (sample_plan.h). Implementations hold no position and are
// const, so one object may be read from several threads at once. Constructors throw cox::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace cox {

// The samples lie along dimension 0 of both tensors; either may be empty, with samples == 0.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
  std::int64_t samples = 0;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  // Samples in the whole set, equal on all ranks; at least 1.
  virtual std::int64_t size() const = 0;

  // The samples of these numbers, in this order; repeats are allowed. Tensors are new, on the CPU.
  // No indices at all give tensors with 0 rows. Must not draw from torch's default generators,
  // which belong to the forward pass. Requires: each index in [0, size()).
  virtual Batch get(std::span<const std::int64_t> indices) const = 0;
};

// Text as bytes, for models that predict the next byte. Sample i has the bytes [i * block,
// (i + 1) * block) as inputs and those one further as targets, both int64 [samples, block]. Bytes
// behind the last whole block are not used. The file is mapped, not read: ranks of one host share
// its pages, and it must not be cut short while it is in use.
class ByteTextDataset final : public Dataset {
 public:
  // Requires: block >= 1. Throws cox::Error if the file is missing, unreadable, empty or shorter
  // than one block and its target.
  ByteTextDataset(const std::filesystem::path& file, std::int64_t block);
  ~ByteTextDataset() override;

  std::int64_t size() const override { return size_; }
  Batch get(std::span<const std::int64_t> indices) const override;

 private:
  class Mapping;

  std::unique_ptr<const Mapping> mapping_;
  std::int64_t block_;
  std::int64_t size_;
};

}  // namespace cox
