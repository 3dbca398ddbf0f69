// Fp8Scope: while one is open on a thread, linear products with a weight run in FP8 on that thread:
// addmm, mm, matmul, linear, bmm, baddbmm with exactly one operand that is a leaf requiring
// gradients or a view of one; everything else goes where it always goes. Results have the type of
// autocast where that is on for the device, else of the input. Open one around each call of a
// block, after autocast is set; with a null block the call is not in FP8, but what runs inside it
// can still be run again correctly. Scopes nest; closing one restores dispatch as it was, also when
// an exception passes. No scope open, no cost.
//
// Running again: capture_fp8() before the function runs, Fp8Scope(captured) around the second run.
// Then every product is treated as the first time and takes the scale it had; nothing is counted.
// Gradients of gradients are refused with a message. Frames are used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "sdk/src/precision/fp8_block.h"

namespace cox::detail {

enum class Fp8Pass : std::uint8_t { first, again };

class Fp8Frame;  // what the products of one call did, in order (fp8_frame.h)

// A place in a call.
struct Fp8Place {
  std::shared_ptr<Fp8Block> block;  // may be null
  std::shared_ptr<Fp8Frame> frame;
  std::size_t next_product = 0;  // of those considered
  std::size_t next_in_fp8 = 0;   // of those taken
  std::size_t next_call = 0;     // of scopes opened inside
};

class [[nodiscard]] Fp8Scope {
 public:
  // A call of a block. Inside a scope that runs again it runs again too.
  explicit Fp8Scope(std::shared_ptr<Fp8Block> block);
  // Runs again what was captured; of nothing: no FP8 inside.
  explicit Fp8Scope(const std::optional<Fp8Place>& captured);
  ~Fp8Scope();
  Fp8Scope(const Fp8Scope&) = delete;
  Fp8Scope& operator=(const Fp8Scope&) = delete;

  Fp8Place& place() { return place_; }
  Fp8Pass pass() const { return pass_; }

 private:
  void enter();

  Fp8Place place_;
  Fp8Pass pass_ = Fp8Pass::first;
  Fp8Scope* outer_;
  bool was_included_;
  bool was_excluded_;
};

// The innermost scope of this thread; nullptr outside of all.
Fp8Scope* current_fp8();

// Where this thread is, to be run again from here; nothing outside of all scopes. A call that was
// captured remembers one scale per product until the last copy of the place is gone.
std::optional<Fp8Place> capture_fp8();

}  // namespace cox::detail
