// Fp8Scope runs linear products with a weight in FP8 on its thread while it is open: addmm, mm,
// matmul, linear, bmm and baddbmm with exactly one operand that is a leaf requiring gradients or a
// view of one. Everything else goes where it always goes. Results have the type of autocast where
// that is on for the device, else of the input. PrecisionCall opens a scope around each call of a
// block, after autocast is set; with a null block the call is not in FP8, but what runs inside it
// can still be run again correctly. Scopes nest; closing one restores dispatch as it was, also when
// an exception passes. Without an open scope nothing costs anything.
//
// Products come to us by a dispatch key of a device that nobody has, which comes before autograd
// and autocast. Its kernels are registered when the library is loaded and do nothing while the key
// is off, as it is outside of scopes.
//
// To run a function again, call capture_fp8() before it runs and open Fp8Scope(captured) around the
// second run. Then every product is treated as the first time and takes the scale that it had, and
// nothing is counted. Gradients of gradients are refused with a message. One thread at a time uses
// a scope.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "sdk/src/precision/fp8_block.h"

namespace cox::detail {

enum class Fp8Pass : std::uint8_t { first, again };

class Fp8Frame;  // what the products of one call did, in order

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
  // Opens the scope of a block's call. Inside a scope that runs again it runs again too.
  explicit Fp8Scope(std::shared_ptr<Fp8Block> block);
  // Runs again what was captured; nothing captured means no FP8 inside.
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

// Returns the innermost scope of this thread, null outside of all.
Fp8Scope* current_fp8();

// Returns where this thread is, to be run again from here; nothing outside of all scopes. A call
// that was captured remembers one scale per product until the last copy of the place is gone.
std::optional<Fp8Place> capture_fp8();

}  // namespace cox::detail
