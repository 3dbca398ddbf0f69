// BlockPrecision: the number format that the plan has for one block, and what FP8 remembers of its
// operands. Set between steps by the thread that trains; read by every call of the block.
#pragma once

#include <memory>
#include <optional>

#include "coordinator/core/precision_format.h"

namespace cox::detail {

class Fp8Block;

class BlockPrecision {
 public:
  // For all calls from now on.
  void steer(Precision format) { format_ = format; }
  // The block computes in whatever is in force where it is called.
  void release() {
    format_.reset();
    fp8_.reset();
  }
  bool is_steered() const { return format_.has_value(); }
  std::optional<Precision> format() const { return format_; }

  void set_fp8(std::shared_ptr<Fp8Block> fp8) { fp8_ = std::move(fp8); }
  const std::shared_ptr<Fp8Block>& fp8() const { return fp8_; }

 private:
  std::optional<Precision> format_;
  std::shared_ptr<Fp8Block> fp8_;
};

}  // namespace cox::detail
