// RecordedPass records one forward pass of a loop that nobody edited, so that it can be run again
// as often as a calibration asks for: the same operators on the same batch, with the parameters as
// they are then, shown to the operator stream as the program's own calls were.
//
//   operator stream -> [RecordedPass: records] -> backward() begins -> close() -> run(), run(), ...
//
// What is no operator is not run again: code that fills a tensor by hand, the node of a custom
// Function. So whoever uses a pass compares the gradients of its first run with the program's own.
//
// A pass that writes to a leaf (the update of an earlier step, the start of a weight) is not run
// again: its runs would change the program's own values. Nor is one with an operator that the
// program registered, which may do anything. Memory that LibTorch did not allocate is
// copied when the pass reads it, up to ForeignCopies::kMostBytes.
//
// A pass holds its batch, and no other tensor of the program beyond its life there: in a run each
// tensor ends where it ended in the program, so memory goes up and down as it did. It belongs to
// one thread.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/replay.h"
#include "sdk/src/stream/tape.h"

namespace cox::detail {

class RecordedPass final : public OperatorListener {
 public:
  RecordedPass();

  bool wants_calls() const override { return is_open_; }
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;

  // Ends the recording where a backward pass begins from these roots with these gradients. Returns
  // failed_precondition, saying why, when no run could end in that backward pass.
  Status close(std::span<const torch::autograd::Edge> roots, std::span<const at::Tensor> gradients);

  // The program's backward pass ended. Tensors that it let go of there were the graph's alone.
  void let_go_of_graph();

  // Returns the leaves that the pass reads: a run adds to their gradients. REQUIRES: close().
  std::vector<at::Tensor> leaves() const;

  // Returns the bytes of tensors that nobody but the pass holds: its batch, once the program has
  // let go of it.
  std::int64_t held_bytes() const;

  // Runs the pass and returns the scalar that backward() is to be called on. Tensors that the
  // program still had then stay until release(). Throws what rerun() does. REQUIRES: close()
  // returned ok.
  at::Tensor run();
  void release() { results_.clear(); }

 private:
  struct Alive {
    RecordedResult result;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  };
  void note_ends();
  Status check_contents() const;

  const std::shared_ptr<Tape> tape_;
  bool is_open_ = true;
  std::vector<Alive> alive_;
  std::vector<RecordedResult> ended_;              // since the last operator began
  std::vector<std::vector<RecordedResult>> ends_;  // before each operator, and after the last
  std::vector<const c10::StorageImpl*> written_;   // by operators; addresses, never followed
  std::string programs_operator_;                  // one that ran; empty: none did
  RecordedResult root_;
  RerunResults results_;
};

}  // namespace cox::detail
