#include "sdk/src/training/equal_ranks.h"

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <locale>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coordinator/io/content_hash.h"
#include "coxswain/error.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/device/bits_hash.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/storage.h"
#include "sdk/src/training/training_state.h"

namespace cox::detail {
namespace {

at::Tensor dense_on_host(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).contiguous();
}

std::uint64_t content_of(const at::Tensor& tensor) {
  return bits_hash(dense_on_host(tensor));
}

// Returns the device of all tensors. Returns none if one is on the CPU, on another device, or not
// dense.
std::optional<at::Device> device_of_all(std::span<const at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    const bool is_alike = tensor.device() == tensors[0].device() && !tensor.is_cpu() &&
                          tensor.layout() == at::kStrided &&
                          c10::isFloatingType(tensor.scalar_type());
    if (!is_alike) return std::nullopt;
  }
  return tensors.empty() ? std::nullopt : std::optional(tensors[0].device());
}

std::uint64_t hash_of(std::span<const at::Tensor> tensors) {
  Fnv1a64 hash;
  for (const at::Tensor& tensor : tensors) hash.add(content_of(tensor));
  return hash.value();
}

std::uint64_t hash_of(const Batch& batch) {
  Fnv1a64 hash;
  for (const at::Tensor& tensor : {batch.inputs, batch.targets}) {
    if (tensor.defined()) hash.add(content_of(dense(tensor)));
  }
  return hash.value();
}

// Returns the largest difference from rank 0's tensor, on every rank. NaN if the values have no
// difference or ranks could not compare them.
std::vector<double> distances_from_root(transport::Communicator& ranks, const at::Tensor& mine) {
  at::Tensor roots = dense_on_host(mine).clone();
  const std::span bytes(static_cast<std::byte*>(roots.mutable_data_ptr()), roots.nbytes());
  const bool is_sent = broadcast(ranks, bytes, kRoot).ok();
  const at::Tensor apart = (dense_on_host(mine).to(at::kDouble) - roots.to(at::kDouble)).abs();
  const double largest = is_sent && apart.numel() > 0 ? apart.max().item<double>() : std::nan("");
  auto all = gather_values(ranks, largest);
  return all.ok() ? *std::move(all) : std::vector<double>(static_cast<std::size_t>(ranks.size()));
}

}  // namespace

void check_equal_models(const Membership& job, const torch::nn::Module& model) {
  std::ostringstream printed;
  printed.imbue(std::locale::classic());
  printed << model;
  Fnv1a64 hash;
  hash.add(fingerprint(model_tensors(model)));
  hash.add(io::content_hash(printed.str()));
  check_equal(job, hash.value(),
              "the same model (names, shapes, types and order of parameters, options of modules)",
              "build the same model on every rank");
}

std::uint64_t hash_of_samples(const Dataset& dataset) {
  constexpr std::int64_t kLooked = 8;
  const std::int64_t size = dataset.size();
  std::vector<std::int64_t> looked;
  for (std::int64_t i = 0; i < std::min(size, kLooked); ++i)
    looked.push_back(i * (size - 1) / std::max<std::int64_t>(1, std::min(size, kLooked) - 1));
  if (looked.empty()) return 0;
  const std::uint64_t hash = hash_of(dataset.get(looked));
  return hash_of(dataset.get(looked)) == hash ? hash : 0;
}

WeightCheck::WeightCheck(std::vector<at::Tensor> parameters, std::uint32_t every_rounds,
                         BlockWatch& blocks, std::string likely_cause)
    : parameters_(std::move(parameters)),
      every_(every_rounds),
      blocks_(blocks),
      likely_cause_(std::move(likely_cause)) {}

void WeightCheck::apply(const Plan&, RoundId round) {
  is_due_ = every_ > 0 && (round.value() % every_ == 0 || std::has_single_bit(round.value()));
  bits_ = {};
}

void WeightCheck::take() {
  if (coming_) {
    if (!coming_->has_come()) coming_->wait();
    bits_ = {"the weights",
             static_cast<std::uint64_t>(*coming_->tensor().const_data_ptr<std::int64_t>())};
    coming_.reset();
  }
  if (!std::exchange(is_due_, false)) return;
  if (const auto device = device_of_all(parameters_)) {
    coming_.emplace(bits_hash_on(*device, parameters_));
    return;
  }
  bits_ = {"the weights", hash_of(parameters_)};
}

// Autograd counts the writes to each tensor, except writes that bypass autograd, such as by
// `.data()`.
std::uint64_t WeightCheck::writes() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& parameter : parameters_) {
    if (!parameter.is_inference()) sum += static_cast<std::uint64_t>(parameter._version());
  }
  return sum;
}

void WeightCheck::end_step(const StepEnd&, StepOutput&) {
  written_ = {writes(), written_[0], written_[1]};
  ++steps_;
}

EndState WeightCheck::end_state() const {
  if (settled_) return *settled_;
  const StreamPause unseen;
  EndState state;
  FiniteLook look(parameters_);
  look.wait();
  const auto bad =
      std::ranges::find_if(look.nonfinite(), [](std::int64_t count) { return count > 0; });
  if (bad != look.nonfinite().end())
    state.not_finite = text_of(static_cast<std::size_t>(bad - look.nonfinite().begin()));
  if (every_ > 0 && !is_told_) state.bits = hash_of(parameters_);
  state.is_of_steps = steps_ == 0 || writes() == written_[0];
  return state;
}

void WeightCheck::settle() {
  if (settled_) return;
  const std::uint64_t now = writes();
  const bool has_usual = steps_ >= 3 && written_[0] - written_[1] == written_[1] - written_[2];
  EndState state = end_state();
  // In a loop with Session::keep the last step has already ended.
  const bool is_ended = now == written_[0];
  state.is_of_steps = !has_usual || is_ended || now - written_[0] == written_[0] - written_[1];
  settled_ = std::move(state);
}

std::string WeightCheck::text_of(std::size_t parameter) const {
  const at::Tensor& tensor = parameters_[parameter];
  std::string text = concat("parameter ", parameter, " of ", parameters_.size(), " (",
                            c10::str(c10::toString(tensor.scalar_type()), tensor.sizes()));
  const BlockMap* map = blocks_.followed();
  const auto owner = map != nullptr ? map->owner(storage_impl(tensor)) : std::nullopt;
  return text + (owner ? ", block " + map->name(*owner) : std::string()) + ")";
}

std::string WeightCheck::explain_difference(transport::Communicator& ranks) {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto hashes = gather_values(ranks, content_of(parameters_[p]));
    if (!hashes.ok()) return {};
    const std::string different = ranks_that_differ(*hashes);
    if (different.empty()) continue;
    is_told_ = true;
    const auto distances = distances_from_root(ranks, parameters_[p]);
    return concat("first ", text_of(p), " on rank ", different, ", by up to ",
                  significant(std::ranges::max(distances), 3),
                  "; the program changes this parameter on some ranks only", likely_cause_,
                  " (or ranks differ in processor or libraries: reduction.verify_steps=0 turns "
                  "this check off)");
  }
  return {};
}

}  // namespace cox::detail
