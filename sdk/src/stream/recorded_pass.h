// RecordedPass records one forward pass of an unmodified loop, and runs it as often as a
// calibration needs. A run calls the same operators on the same batch with the current parameters.
// The operator stream shows a run as it showed the program's own calls. One thread.
//
//   operator stream -> [RecordedPass: records] -> backward() begins -> close() -> run(), run(), ...
//
// A step with several backward passes is recorded as a whole: each pass as an operator, between
// record_backward() and end_backward(), and the end by close_behind_backward().
//
// A pass holds its batch. In a run every other tensor ends where it ended in the program, so memory
// goes up and down in the same way.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/replay.h"
#include "sdk/src/stream/tape.h"

namespace cox::detail {

// RecordedPass repeats operators only, neither code that fills a tensor by hand nor the node of a
// custom Function. So users compare the gradients of the first run with the program's own.
//
// close() refuses a pass that writes to a leaf (an earlier step's update, a weight's initial
// values), because a run would change the program's values. close() also refuses a pass with an
// operator registered by the program, which may do anything. Reads of memory that LibTorch did not
// allocate are copied, up to ForeignCopies::kMostBytes.
class RecordedPass final : public OperatorListener {
 public:
  RecordedPass();

  bool wants_calls() const override { return is_open_; }
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;

  // Ends the recording when a backward pass begins from these roots with these gradients. Returns
  // failed_precondition with the cause if no run could end in this backward pass.
  Status close(std::span<const torch::autograd::Edge> roots, std::span<const at::Tensor> gradients);

  // Ends the program's backward pass. Tensors that ended in it were the graph's alone.
  void let_go_of_graph();

  // Record a backward pass of the step as an operator.
  void record_backward(const BackwardPass& pass);
  void end_backward();
  std::size_t backward_passes() const { return backward_passes_; }
  // Ends the recording of a whole step, and forgets what followed its last backward pass. run()
  // then returns an undefined tensor. Returns failed_precondition with the cause if no run is
  // possible. REQUIRES: backward_passes() > 0.
  Status close_behind_backward();

  // Returns the leaves read by the pass: a run adds to their gradients. REQUIRES: close().
  std::vector<at::Tensor> leaves() const;

  // Returns the bytes of tensors held by the passes alone: the batch, after the program has
  // released it.
  static std::int64_t held_bytes(std::span<RecordedPass* const> passes);

  // Runs the pass and returns the scalar for backward(). Tensors that the program still held at
  // this point stay until release(). Throws as rerun() does. REQUIRES: close() returned ok.
  at::Tensor run();
  void release() { results_.clear(); }

 private:
  struct Alive {
    RecordedResult result;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  };
  // A place in the recording, behind an operator.
  struct Mark {
    std::size_t operators = 0;
    std::size_t references = 0;
    std::size_t outsides = 0;
    std::size_t written = 0;
    bool has_programs_operator = false;
  };
  void note_ends();
  void end_recording();
  void cut(const Mark& mark);
  Status check_contents() const;

  const std::shared_ptr<Tape> tape_;
  bool is_open_ = true;
  std::vector<Alive> alive_;
  std::vector<RecordedResult> ended_;              // ended since the last operator began
  std::vector<std::vector<RecordedResult>> ends_;  // ended before each operator, and after the last
  std::vector<const c10::StorageImpl*> written_;   // addresses, never followed
  std::string programs_operator_;                  // name of one that ran; empty: none
  RecordedResult root_;
  std::size_t backward_passes_ = 0;
  bool is_in_backward_ = false;  // a backward pass is recorded that has not ended
  Mark last_backward_;
  Status backward_status_;  // ok while the backward passes can run again
  RerunResults results_;
};

// WholeSteps records steps with several backward passes. A recording ends with the fourth backward
// pass, because it holds the batches of all passes. A user tells the events of a step in order.
class WholeSteps {
 public:
  static constexpr std::size_t kMostPasses = 4;

  void begin_step() {
    open_ = std::make_unique<RecordedPass>();
    is_wanted_ = true;
  }
  bool wants_calls() const { return open_ != nullptr; }
  void begin_forward() { is_forward_ = true; }
  // Receive the operators of the step, of which some are recorded.
  void begin(const OperatorCall& call);
  void end(std::span<const c10::IValue> results);
  void failed() noexcept;
  void backward_begins(const BackwardPass& pass);
  void backward_ended();
  // Drops the open step at its end, because a step like it was kept before.
  void forget_step() { is_wanted_ = false; }
  // Ends the open step behind its last backward pass. Keeps the recording if the step had several
  // backward passes and can run again. Does nothing before the first one.
  void end_step();
  // Drops the kept recordings that `run` cannot run again.
  void drop_broken(const std::function<Status(RecordedPass&)>& run);

  // Returns the recordings that were kept.
  const std::vector<std::unique_ptr<RecordedPass>>& kept() const { return kept_; }
  // Returns ok unless a recording was dropped, or else the cause of the first one.
  const Status& dropped() const { return dropped_; }

 private:
  bool records(const OperatorCall& call) const;
  // Returns whether the outcome of a recording is an error, and notes the first one.
  bool is_broken(const Status& outcome);

  std::unique_ptr<RecordedPass> open_;  // the step so far
  std::vector<std::unique_ptr<RecordedPass>> kept_;
  Status dropped_;
  bool is_forward_ = false;
  bool is_recorded_ = false;  // the running operator
  bool is_wanted_ = true;
};

}  // namespace cox::detail
