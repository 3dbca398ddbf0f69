// The operator stream shows listeners every LibTorch operator of a thread, as user code called it,
// and needs no change to the model. Blocks without edits, the tape and number formats by operator
// use the stream. Nothing outside a StreamScope pays for the stream; docs/results has the cost
// inside.
//
//   user code -> [stream: listeners, before] -> autocast -> autograd -> kernel -> [listeners,
//   after]
//
// A listener belongs to the thread of its scope and outlives the scope. Listeners may call
// operators; the stream does not show those.
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

// OperatorFacts describes an operator by its schema alone. Looked up once, because a query to the
// dispatcher costs as much as an operator.
struct OperatorFacts {
  bool is_composite = false;              // LibTorch only composes it of others
  bool is_product = false;                // product_formats.h
  bool is_autocast = false;               // CUDA's autocast has a kernel
  bool is_random = false;                 // draws from a generator
  bool is_programs = false;               // registered by the program or one of its libraries
  std::vector<std::uint16_t> written;     // arguments written to
  std::vector<std::uint16_t> statistics;  // arguments written to, undeclared in the schema
};
OperatorFacts facts_of(const c10::OperatorHandle& handle);

// IntegerList is an argument that is a list of numbers, in the caller's memory.
struct IntegerList {
  std::size_t argument = 0;
  at::IntArrayRef values;
};

// OperatorCall is one operator about to run. Valid during the listener's call.
struct OperatorCall {
  const c10::OperatorHandle& handle;
  const OperatorFacts& facts;
  std::span<const c10::IValue> arguments;
  // Lists of numbers. `arguments` has None in their places, because boxing a list takes two
  // allocations.
  std::span<const IntegerList> integers;
  // Autocast and autograd keys excluded on the calling thread.
  c10::DispatchKeySet excluded;
};

// Calls `use` with every defined tensor among the arguments.
template <class Use>
void for_each_tensor_of(const OperatorCall& call, const Use& use) {
  for (const c10::IValue& value : call.arguments) for_each_tensor_in(value, use);
}

// The use of a pass's gradients: backward() adds gradients to .grad, grad() returns them.
enum class BackwardKind : std::uint8_t { accumulating, returning };

// BackwardPass is one backward pass that begins. Valid during the listener's call.
struct BackwardPass {
  BackwardKind kind = BackwardKind::accumulating;
  std::span<const torch::autograd::Edge> roots;  // start of the pass
  std::span<const at::Tensor> gradients;         // the roots' gradients
  bool keeps_graph = false;
  bool creates_graph = false;
};

// ProductCaller runs products in a format that needs more than casts: FP8 operands have scales.
class ProductCaller {
 public:
  virtual ~ProductCaller() = default;
  // Runs a product by operators shown to listeners, as user code would, and replaces its arguments
  // on the stack by the result. Returns false, before any call, to decline. REQUIRES:
  // is_to_be_narrowed() (product_formats.h).
  virtual bool call(const c10::OperatorHandle& handle, torch::jit::Stack& stack) = 0;
};

// ProductFormat is a format of products other than the program's own.
struct ProductFormat {
  at::ScalarType type;              // float if narrow tensors of other blocks may arrive
  ProductCaller* caller = nullptr;  // asked first; null: none. A declined product is cast to `type`
};

class OperatorListener {
 public:
  virtual ~OperatorListener() = default;
  // Called before every operator and before any listener's begin(), once for each defined tensor
  // among the arguments. A throw cancels the operator.
  virtual void touch(const c10::OperatorHandle& /*handle*/, const at::Tensor& /*argument*/) {}
  // Returns whether product_format() can have a value in this step. Called before every operator
  // that formats apply to.
  virtual bool has_formats() const { return false; }
  // Returns the format of products (product_formats.h), if any. Called before every product, after
  // touch(). The first listener with a format decides. Listeners then see the casts and the narrow
  // product.
  virtual std::optional<ProductFormat> product_format() const { return std::nullopt; }
  // Returns whether to call begin() and end(). Called before every operator, after touch().
  virtual bool wants_calls() const { return false; }
  virtual void begin(const OperatorCall& /*call*/) {}
  // Every begin() ends with exactly one of end() and failed(), in reverse order of listeners.
  virtual void end(std::span<const c10::IValue> /*results*/) {}
  virtual void failed() noexcept {}  // the operator threw
  // A backward pass of this thread begins; a backward pass ended without throwing. Listeners get no
  // call for a nested pass or for one inside a forward pass (inner_gradients.h).
  virtual void backward_begins(const BackwardPass& /*pass*/) {}
  virtual void backward_ended(BackwardKind /*kind*/) {}
};

// OperatorRewriter runs operators with other arguments than the loop gave. The stream calls the
// rewriter before the listeners, who see the operator as the loop called it.
class OperatorRewriter {
 public:
  virtual ~OperatorRewriter() = default;
  // Called with each defined tensor among the arguments, before wants().
  virtual void touch(const at::Tensor& argument) = 0;
  // Returns whether call() shall run the operator. May wait for other ranks, and throw.
  virtual bool wants(const c10::OperatorHandle& handle, const OperatorFacts& facts) = 0;
  // Runs the operator and replaces its arguments on the stack by the results. The stream does not
  // show operators called inside. May throw.
  virtual void call(const c10::OperatorHandle& handle, const OperatorFacts& facts,
                    torch::jit::Stack& stack) = 0;
};

// StreamScope shows this thread's operators to `listeners`, in order, from construction on. A
// `rewriter` may run some of them. Scopes nest; the innermost one counts. A scope without a
// rewriter keeps the outer scope's.
//
// The scope includes a dispatch key that no device uses (TESTING_ONLY_GenericMode, above autocast
// and autograd) in the thread's keys. Our fallback for the key calls the listeners, then passes the
// operator on without the key, so that nested operators stay hidden. The stream shows the parts of
// composed operators (CompositeImplicit: linear, matmul, dropout), not the composed ones. Other
// threads and backward passes stay hidden: the engine excludes the key during a pass
// (saved_tensors.h).
//
// REQUIRES: scopes and pauses of a thread end in reverse order, because each restores the keys
// found at its start.
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

// Returns failed_precondition if a library has kernels on the stream's dispatch key, which would
// hide its operators. Checks all operators in some milliseconds.
Status check_stream_key();

// StreamPause hides this thread's operators from the scope while it exists.
class StreamPause {
 public:
  StreamPause() = default;
  StreamPause(const StreamPause&) = delete;
  StreamPause& operator=(const StreamPause&) = delete;

 private:
  const c10::impl::ExcludeDispatchKeyGuard excluded_{kStreamKey};
};

// Tell this thread's listeners about a backward pass. Called by the engine (saved_tensors.cc).
void tell_backward_begins(const BackwardPass& pass);
void tell_backward_ended(BackwardKind kind);

// Calls `run`. If a listener of this thread wants calls, shows `run` as one call of the operator,
// although `run` need not be one. `arguments` returns the call's arguments; `run` returns its
// results.
void show_call(const c10::OperatorHandle& handle,
               const std::function<std::vector<c10::IValue>()>& arguments,
               const std::function<std::vector<c10::IValue>()>& run);

// Returns whether a listener of this thread sees the operators that run now.
bool is_shown();

// Returns how many operators this thread's scopes have shown so far.
std::uint64_t operators_shown();

}  // namespace cox::detail
