#include "sdk/src/blocks/block_registry.h"

#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <unordered_map>

#include "sdk/src/blocks/marker.h"

namespace cox::detail {
namespace {

using torch::nn::Module;
using ElementStates = std::unordered_map<const Module*, std::shared_ptr<BlockState>>;

void note_elements(Module& module, ElementStates& states) {
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  if (sequential == nullptr) return;
  for (torch::nn::AnyModule& any : *sequential) {
    if (const auto* element = wrapped_element(any)) states[any.ptr().get()] = element->state();
  }
}

std::uint64_t count_parameters(const Module& module) {
  std::uint64_t elements = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    elements += static_cast<std::uint64_t>(parameter.numel());
  }
  return elements;
}

}  // namespace

Nanoseconds steady_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

void BlockRegistry::add(const std::string& name, const std::shared_ptr<BlockState>& state) {
  state->id = BlockId(static_cast<BlockId::rep>(blocks_.size()));
  state->name = name.empty() ? "model" : name;
  blocks_.push_back(state);
}

Result<BlockRegistry> BlockRegistry::discover(Module& model) {
  BlockRegistry registry;
  ElementStates elements;
  std::size_t found = 0;
  for_each_module(model, [&](const std::string& path, Module& module) {
    note_elements(module, elements);
    std::shared_ptr<BlockState> state = find_marker(module);
    if (const auto element = elements.find(&module); !state && element != elements.end()) {
      state = element->second;
    }
    if (!state || ++found > kMaxBlocks) return;
    state->parameters = count_parameters(module);
    registry.add(path, state);
  });
  if (found <= kMaxBlocks) return registry;
  return resource_exhausted("blocks of the model: expected at most " + std::to_string(kMaxBlocks) +
                            ", found " + std::to_string(found) +
                            "; make each block a larger part of the model");
}

BlockRegistry::~BlockRegistry() {
  release();
}

Status BlockRegistry::attach(BlockSink& sink, BlockClock clock) {
  for (const auto& state : blocks_) {
    if (state->sink() != nullptr) {
      return failed_precondition(
          "block " + state->name +
          ": expected no observer, found one; only one session at a time may "
          "be attached to a model");
    }
  }
  for (const auto& state : blocks_) state->observe(&sink, clock);
  sink_ = &sink;
  return ok_status();
}

Status BlockRegistry::measure(MeasureMode mode) {
  Status status;
  if (mode == MeasureMode::full) status = install_saved_tensor_engine();
  if (!status.ok()) mode = MeasureMode::times;
  for (const auto& state : blocks_) {
    if (sink_ != nullptr && state->sink() == sink_) state->set_mode(mode);
  }
  return status;
}

void BlockRegistry::release() {
  for (const auto& state : blocks_) {
    if (sink_ != nullptr && state->sink() == sink_) state->release();
  }
  sink_ = nullptr;
}

void BlockRegistry::set_health(const std::shared_ptr<HealthLedger>& ledger) {
  for (const auto& state : blocks_) state->set_health(ledger);
}

void BlockRegistry::set_precision(BlockId block, Precision format) {
  at(block).set_precision(format);
}

void BlockRegistry::release_precision(BlockId block) {
  at(block).set_precision(std::nullopt);
}

void BlockRegistry::set_fp8(BlockId block, std::shared_ptr<Fp8Block> fp8) {
  at(block).precision.set_fp8(std::move(fp8));
}

Status BlockRegistry::set_action(BlockId block, MemoryAction action) {
  Status status;
  if (action != MemoryAction::keep) status = install_saved_tensor_engine();
  at(block).set_action(status.ok() ? action : MemoryAction::keep);
  return status;
}

void BlockRegistry::request_checks() {
  for (const auto& state : blocks_) state->request_check();
}

bool BlockRegistry::has_pending_checks() const {
  return std::ranges::any_of(blocks_,
                             [](const auto& state) { return state->memory.wants_check(); });
}

std::vector<PinnedBlock> BlockRegistry::pinned() const {
  std::vector<PinnedBlock> pinned;
  for (const auto& state : blocks_) {
    if (auto reason = state->memory.pinned()) pinned.push_back({state->id, std::move(*reason)});
  }
  return pinned;
}

void BlockRegistry::unpin(BlockId block) {
  at(block).memory.unpin();
}

void BlockRegistry::set_offload(const OffloadFrames& frames) {
  for (const auto& state : blocks_) state->memory.set_offload(frames);
}

}  // namespace cox::detail
