#include "sdk/src/stream/recorded_pass.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <string>
#include <utility>

#include "sdk/src/stream/foreign_copies.h"
#include "sdk/src/stream/inner_gradients.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

Status not_repeatable(const std::string& found) {
  return failed_precondition(
      "expected backward() from one scalar that operators of this step computed, found " + found);
}

bool is_one(const at::Tensor& gradient) {
  return gradient.defined() && gradient.numel() == 1 && gradient.item<double>() == 1.0;
}

Status check_scalar(std::span<const torch::autograd::Edge> roots,
                    std::span<const at::Tensor> gradients) {
  if (roots.size() != 1) return not_repeatable(std::to_string(roots.size()) + " tensors");
  if (gradients.size() != 1 || !is_one(gradients[0]))
    return not_repeatable("a gradient passed to backward() other than 1");
  return ok_status();
}

}  // namespace

// Remakes the results of factories too, so that they live as long as in the program.
RecordedPass::RecordedPass()
    : tape_(Tape::make("trial of the first step", {},
                       {.storages = false,
                        .outside_views = false,
                        .factories = false,
                        .copies_foreign = true,
                        .histories = true})) {}

void RecordedPass::begin(const OperatorCall& call) {
  if (std::exchange(is_in_backward_, false)) {
    failed();
    backward_status_ = not_repeatable("a backward pass that failed");
  }
  note_ends();
  ends_.push_back(std::exchange(ended_, {}));
  if (call.facts.is_programs) programs_operator_ = call.handle.operator_name().name;
  for (const std::uint16_t argument : call.facts.written) {
    for_each_tensor_in(call.arguments[argument], [this](const at::Tensor& tensor) {
      written_.push_back(storage_impl(tensor));
    });
  }
  tape_->begin(call);
}

std::vector<at::Tensor> RecordedPass::leaves() const {
  std::vector<at::Tensor> leaves;
  for (const TapeRecords::Outside& it : tape_->records().outsides) {
    const auto is_it = [&](const at::Tensor& each) { return each.is_same(it.tensor); };
    if (is_parameter(it.tensor) && std::ranges::none_of(leaves, is_it)) leaves.push_back(it.tensor);
  }
  return leaves;
}

std::int64_t RecordedPass::held_bytes(std::span<RecordedPass* const> passes) {
  struct Held {
    at::Tensor first;
    std::set<const c10::TensorImpl*> tensors;
  };
  std::map<const c10::StorageImpl*, Held> ours;
  for (const RecordedPass* pass : passes) {
    for (const TapeRecords::Outside& it : pass->tape_->records().outsides) {
      if (!it.tensor.has_storage() || is_parameter(it.tensor)) continue;
      Held& held = ours[storage_impl(it.tensor)];
      if (held.tensors.empty()) held.first = it.tensor;
      held.tensors.insert(it.tensor.unsafeGetTensorImpl());
    }
  }
  std::int64_t bytes = 0;
  for (const Held& held : std::views::values(ours)) {
    if (held.first.storage().use_count() == held.tensors.size())
      bytes += static_cast<std::int64_t>(held.first.storage().nbytes());
  }
  return bytes;
}

Status RecordedPass::check_contents() const {
  if (!programs_operator_.empty()) {
    return failed_precondition(
        "expected operators of LibTorch, found ", programs_operator_,
        ", which the program registered and which Coxswain never runs twice");
  }
  if (tape_->counts().foreign_bytes > ForeignCopies::kMostBytes) {
    return failed_precondition("expected at most ", ForeignCopies::kMostBytes >> 20,
                               " MiB of memory that LibTorch did not allocate (from_blob), found ",
                               "more; clone() the batch before the model reads it");
  }
  const TapeRecords& records = tape_->records();
  for (const TapeRecords::Reference& it : records.references) {
    const bool is_outside = it.source == TapeRecords::Source::outside && it.requires_grad;
    if (!is_outside || is_parameter(records.outsides[static_cast<std::size_t>(it.index)].tensor))
      continue;
    return failed_precondition("expected a graph that begins in the step, found a tensor of ",
                               records.outsides[static_cast<std::size_t>(it.index)].tensor.numel(),
                               " elements with an earlier history: the graph of another step, ",
                               "of backward(create_graph), or of a custom function");
  }
  for (const at::Tensor& leaf : leaves()) {
    if (std::ranges::find(written_, storage_impl(leaf)) != written_.end())
      return failed_precondition("expected a step that changes no parameter before backward(), ",
                                 "found a write to one with ", leaf.numel(), " elements");
  }
  return ok_status();
}

void RecordedPass::note_ends() {
  std::erase_if(alive_, [this](const Alive& it) {
    if (!it.tensor.expired()) return false;
    ended_.push_back(it.result);
    return true;
  });
}

void RecordedPass::end(std::span<const c10::IValue> results) {
  tape_->end(results);
  const auto maker = static_cast<TapeRecords::OperatorIndex>(ends_.size()) - 1;
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::int16_t element = 0;
    const auto note = [&](const at::Tensor& tensor) {
      const RecordedResult result{maker, static_cast<std::int16_t>(i), element++};
      if (!tensor.defined()) return;
      alive_.push_back(
          {result, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
    };
    if (results[i].isTensor()) note(results[i].toTensor());
    if (!results[i].isTensorList()) continue;
    for (const at::Tensor& each : results[i].toTensorVector()) note(each);
  }
}

// Results that had ended end before the next operator.
void RecordedPass::failed() noexcept {
  tape_->failed();
  ended_ = std::move(ends_.back());
  ends_.pop_back();
}

Status RecordedPass::close(std::span<const torch::autograd::Edge> roots,
                           std::span<const at::Tensor> gradients) {
  end_recording();
  if (Status wrong = check_contents(); !wrong.ok()) return wrong;
  if (Status wrong = check_scalar(roots, gradients); !wrong.ok()) return wrong;
  for (const Alive& it : alive_) {
    const auto impl = it.tensor.lock();
    if (!impl) continue;
    const at::Tensor tensor = at::Tensor(impl);
    if (!tensor.requires_grad() || torch::autograd::impl::gradient_edge(tensor) != roots[0]) {
      continue;
    }
    root_ = it.result;
    return ok_status();
  }
  return not_repeatable("a scalar from outside this step");
}

void RecordedPass::end_recording() {
  is_open_ = false;
  note_ends();
  ends_.push_back(std::exchange(ended_, {}));
  tape_->close();
  tape_->stop_copying();
}

void RecordedPass::record_backward(const BackwardPass& pass) {
  if (backward_status_.ok()) backward_status_ = check_scalar(pass.roots, pass.gradients);
  if (!backward_status_.ok()) return;
  static const OperatorFacts facts = facts_of(backward_operator());
  const std::vector<c10::IValue> arguments = backward_arguments(pass);
  const auto excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  begin({backward_operator(), facts, arguments, {}, excluded});
  is_in_backward_ = true;
}

void RecordedPass::end_backward() {
  ++backward_passes_;
  if (!std::exchange(is_in_backward_, false)) return;
  end({});
  // Tensors that ended in the pass were the graph's alone, and so they are in a run.
  note_ends();
  std::ranges::move(std::exchange(ended_, {}), std::back_inserter(ends_.back()));
  const TapeRecords& records = tape_->records();
  last_backward_ = {records.operators.size(), records.references.size(), records.outsides.size(),
                    written_.size(), !programs_operator_.empty()};
}

Status RecordedPass::close_behind_backward() {
  end_recording();
  alive_.clear();
  if (!backward_status_.ok()) return backward_status_;
  cut(last_backward_);
  return check_contents();
}

void RecordedPass::cut(const Mark& mark) {
  const auto shorten = [](auto& list, std::size_t size) {
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(size), list.end());
  };
  TapeRecords& records = tape_->records();
  shorten(records.operators, mark.operators);
  shorten(records.references, mark.references);
  shorten(records.outsides, mark.outsides);
  shorten(written_, mark.written);
  shorten(ends_, mark.operators);
  ends_.emplace_back();
  if (!mark.has_programs_operator) programs_operator_.clear();
}

// A run's own graph holds the program's results, and releases them in the run's backward pass.
void RecordedPass::let_go_of_graph() {
  for (const Alive& it : alive_) {
    if (it.tensor.expired() && it.result != root_) ends_.back().push_back(it.result);
  }
  alive_.clear();
}

at::Tensor RecordedPass::run() {
  results_.clear();
  rerun(tape_->records(), ends_, results_);
  if (root_.maker == TapeRecords::kNone) return {};
  const auto at = [](std::int32_t index) { return static_cast<std::size_t>(index); };
  return results_[at(root_.maker)][at(root_.output)][at(root_.element)];
}

// Leaves out operators on gradients (a clipping) between a backward pass and the next forward pass:
// a tape copies a tensor before a write, and so would copy all gradients.
bool WholeSteps::records(const OperatorCall& call) const {
  if (open_ == nullptr) return false;
  bool has_history = false;
  for_each_tensor_of(
      call, [&](const at::Tensor& tensor) { has_history = has_history || tensor.requires_grad(); });
  return is_forward_ || (has_history && at::GradMode::is_enabled());
}

void WholeSteps::begin(const OperatorCall& call) {
  is_recorded_ = records(call);
  if (is_recorded_) open_->begin(call);
}

void WholeSteps::end(std::span<const c10::IValue> results) {
  if (std::exchange(is_recorded_, false)) open_->end(results);
}

void WholeSteps::failed() noexcept {
  if (std::exchange(is_recorded_, false)) open_->failed();
}

void WholeSteps::backward_begins(const BackwardPass& pass) {
  is_forward_ = false;
  if (open_ != nullptr) open_->record_backward(pass);
}

void WholeSteps::backward_ended() {
  if (open_ == nullptr) return;
  open_->end_backward();
  if (open_->backward_passes() == kMostPasses) end_step();
}

void WholeSteps::end_step() {
  if (open_ == nullptr || open_->backward_passes() == 0) return;
  std::unique_ptr<RecordedPass> step = std::exchange(open_, nullptr);
  const bool is_wanted = is_wanted_ && step->backward_passes() > 1;
  is_recorded_ = false;
  if (is_wanted && !is_broken(step->close_behind_backward())) kept_.push_back(std::move(step));
}

bool WholeSteps::is_broken(const Status& outcome) {
  if (dropped_.ok()) dropped_ = outcome;
  return !outcome.ok();
}

void WholeSteps::drop_broken(const std::function<Status(RecordedPass&)>& run) {
  std::erase_if(kept_, [&](const auto& whole) { return is_broken(run(*whole)); });
}

}  // namespace cox::detail
