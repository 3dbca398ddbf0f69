// The operator stream shows every LibTorch operator that a thread calls, as user code called it, to
// listeners of ours, without any change to a model. It is the ground that blocks without edits, the
// tape and number formats by operator stand on.
//
//   user code -> [stream: listeners, before] -> autocast -> autograd -> kernel -> [listeners,
//   after]
//
// How: a StreamScope includes a dispatch key that no device uses (TESTING_ONLY_GenericMode, above
// autocast and autograd) in the calling thread's keys; our fallback for that key tells the
// listeners and passes the operator on without the key, so that what an operator calls inside is
// not shown. Operators that LibTorch only composes of others (CompositeImplicit: linear, matmul,
// dropout) are not shown themselves; their parts are. Nothing is shown on other threads, and
// nothing of a backward pass (saved_tensors.h: the engine excludes the key while it runs one).
//
// Cost: nothing outside of a scope; inside, see docs/results. A listener belongs to the thread of
// its scope and outlives it. Listeners may call operators: those are not shown.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/libtorch/stream_key.h"
#include "sdk/src/stream/storage.h"

namespace torch::autograd {
struct Edge;
}

namespace cox::detail {

// What is known of an operator from its schema alone, looked up once: asking the dispatcher costs
// as much as an operator.
struct OperatorFacts {
  bool is_composite = false;              // LibTorch only composes it of others
  bool is_product = false;                // product_formats.h
  bool is_autocast = false;               // autocast of CUDA knows it
  bool is_random = false;                 // draws from a generator
  bool is_programs = false;               // the program, or a library of its, registered it
  std::vector<std::uint16_t> written;     // arguments that it writes to
  std::vector<std::uint16_t> statistics;  // that it writes to without saying so
};
OperatorFacts facts_of(const c10::OperatorHandle& handle);

// An argument that is a list of numbers, as the caller has it.
struct IntegerList {
  std::size_t argument = 0;
  at::IntArrayRef values;
};

// One operator that is about to run. Valid during the call that gets it.
struct OperatorCall {
  const c10::OperatorHandle& handle;
  const OperatorFacts& facts;
  std::span<const c10::IValue> arguments;
  // Lists of numbers that are not in `arguments`, which has None in their places: to put them there
  // takes two allocations each.
  std::span<const IntegerList> integers;
  // Of the thread where the operator was called: autocast and autograd keys that it excludes.
  c10::DispatchKeySet excluded;
};

// Calls `use` with every defined tensor among the arguments.
template <class Use>
void for_each_tensor_of(const OperatorCall& call, const Use& use) {
  for (const c10::IValue& value : call.arguments) for_each_tensor_in(value, use);
}

// What a backward pass does with gradients: backward() adds them to .grad, grad() returns them.
enum class BackwardKind : std::uint8_t { accumulating, returning };

// One backward pass that begins. Valid during the call that gets it.
struct BackwardPass {
  BackwardKind kind = BackwardKind::accumulating;
  std::span<const torch::autograd::Edge> roots;  // where it starts
  std::span<const at::Tensor> gradients;         // of the roots
};

// Runs products in a format that is more than casts: FP8, whose operands have scales.
class ProductCaller {
 public:
  virtual ~ProductCaller() = default;
  // Runs a product by operators that are shown, as user code would, and leaves its result on the
  // stack in place of its arguments; or returns false and has called nothing. REQUIRES:
  // is_to_be_narrowed() (product_formats.h).
  virtual bool call(const c10::OperatorHandle& handle, torch::jit::Stack& stack) = 0;
};

// What products run in that do not run as they were written.
struct ProductFormat {
  at::ScalarType type;              // float where narrow tensors of other blocks may come
  ProductCaller* caller = nullptr;  // if any, asked first; what it declines is cast to `type`
};

class OperatorListener {
 public:
  virtual ~OperatorListener() = default;
  // Called before every operator, with each defined tensor among its arguments in turn, before any
  // listener's begin(). May throw; the operator does not run then.
  virtual void touch(const c10::OperatorHandle& /*handle*/, const at::Tensor& /*argument*/) {}
  // Whether product_format() can have an answer at all, in this step; asked before every operator
  // that formats are for.
  virtual bool has_formats() const { return false; }
  // The format that products run in (product_formats.h), if any; asked before every product, after
  // touch(). Of several listeners the first one that has a format counts. The operators that
  // listeners see are then the casts and the narrow product.
  virtual std::optional<ProductFormat> product_format() const { return std::nullopt; }
  // Whether begin() and end() are to be called; asked before every operator, after touch().
  virtual bool wants_calls() const { return false; }
  virtual void begin(const OperatorCall& /*call*/) {}
  // Exactly one of these ends a call of begin(), in reverse order of listeners.
  virtual void end(std::span<const c10::IValue> /*results*/) {}
  virtual void failed() noexcept {}  // the operator threw
  // A backward pass of this thread begins, and has ended without throwing. Passes inside a pass are
  // not told, nor is one that is part of a forward pass (inner_gradients.h).
  virtual void backward_begins(const BackwardPass& /*pass*/) {}
  virtual void backward_ended(BackwardKind /*kind*/) {}
};

// Runs operators with other arguments than the loop gave them. It is asked before listeners are
// shown the operator, which they see as the loop called it.
class OperatorRewriter {
 public:
  virtual ~OperatorRewriter() = default;
  // Called with each defined tensor among the arguments, before wants().
  virtual void touch(const at::Tensor& argument) = 0;
  // Returns whether call() is to run the operator. May wait for other ranks, and throw.
  virtual bool wants(const c10::OperatorHandle& handle, const OperatorFacts& facts) = 0;
  // Runs the operator and leaves its results on the stack in place of its arguments. Operators that
  // it calls are not shown. May throw.
  virtual void call(const c10::OperatorHandle& handle, const OperatorFacts& facts,
                    torch::jit::Stack& stack) = 0;
};

// Shows operators of this thread to `listeners`, in their order, from its construction on, and
// lets `rewriter` run some of them; scopes nest, and the innermost one counts. Without a rewriter
// that of the scope around it goes on.
// REQUIRES: scopes and pauses of a thread end in the reverse order of their beginning, because each
// puts back the keys that it found.
class StreamScope {
 public:
  explicit StreamScope(std::vector<OperatorListener*> listeners,
                       OperatorRewriter* rewriter = nullptr);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  friend class Stream;
  const std::vector<OperatorListener*> listeners_;
  OperatorRewriter* const rewriter_;
  StreamScope* const outer_;
  const bool was_excluded_;
  const c10::impl::IncludeDispatchKeyGuard included_{kStreamKey};
};

// Returns failed_precondition where a library has kernels of its own on the stream's dispatch key:
// its operators would not be shown. Looks through all operators, some milliseconds.
Status check_stream_key();

// Hides the operators of this thread from its scope while it exists.
class StreamPause {
 public:
  StreamPause() = default;
  StreamPause(const StreamPause&) = delete;
  StreamPause& operator=(const StreamPause&) = delete;

 private:
  const c10::impl::ExcludeDispatchKeyGuard excluded_{kStreamKey};
};

// The engine tells the listeners of this thread of its passes (saved_tensors.cc).
void tell_backward_begins(const BackwardPass& pass);
void tell_backward_ended(BackwardKind kind);

// Shows what `run` does as one call of an operator, which it need not be, where a listener of this
// thread wants calls; else only runs it. `arguments` makes the call's arguments, `run` returns its
// results.
void show_call(const c10::OperatorHandle& handle,
               const std::function<std::vector<c10::IValue>()>& arguments,
               const std::function<std::vector<c10::IValue>()>& run);

// Returns whether a listener of this thread sees what runs now.
bool is_shown();

// Returns how many operators this thread's scopes have shown so far.
std::uint64_t operators_shown();

}  // namespace cox::detail
