// A small net with followed visits of blocks, and their reports.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "sdk/src/blocks/visit_listener.h"
#include "sdk/src/stream/block_map.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/storage.h"

namespace visits_test {

using at::Tensor;
using cox::BlockId;
using cox::MemoryAction;
using cox::detail::BlockEdge;
using cox::detail::BlockMap;
using cox::detail::BlockMeasurement;
using cox::detail::MeasureMode;

struct Sink final : cox::detail::BlockSink {
  void block_measured(BlockId block, const BlockMeasurement& measured) noexcept override {
    reports.at(block.value()) = measured;
  }
  void block_edge(BlockId block, BlockEdge edge) noexcept override {
    edges.push_back("<>[]"[static_cast<int>(edge)]);
    edges += std::to_string(block.value());
  }
  std::vector<std::optional<BlockMeasurement>> reports;
  std::string edges;  // "<0>0" forward, "[0]0" backward
};

// Advances by one at each reading, so a duration counts the readings inside.
inline cox::Nanoseconds counting_clock() {
  static std::int64_t reads = 0;
  return cox::Nanoseconds(++reads);
}

// A net whose layers multiply by a parameter. A VisitListener sees its operators.
class Watched final : public cox::detail::OperatorListener {
 public:
  Watched(torch::nn::Module& net, MeasureMode mode)
      : map_(*BlockMap::make(net, {})),
        listener(std::make_shared<cox::detail::VisitListener>(sink, &counting_clock)),
        visits(listener->visits()) {
    if (!cox::detail::install_saved_tensor_engine().ok()) throw std::runtime_error("engine");
    for (std::size_t b = 0; b < map_.size(); ++b) {
      const BlockId block(static_cast<BlockId::rep>(b));
      visits.add_block(map_.name(block), map_.elements(block));
    }
    sink.reports.resize(map_.size());
    visits.parts().clock.measure(mode);
    saving_.emplace(*listener);
    stream_.emplace(std::vector<OperatorListener*>{this});
  }
  void touch(const c10::OperatorHandle& handle, const Tensor& argument) override {
    const c10::StorageImpl* storage = cox::detail::storage_impl(argument);
    if (!map_.owner(storage)) return visits.read_other(argument);
    visits.read_parameter(map_, 0, {handle, storage});
  }
  bool wants_calls() const override { return listener->wants_calls(); }
  void begin(const cox::detail::OperatorCall& call) override { listener->begin(call); }
  void end(std::span<const c10::IValue> results) override { listener->end(results); }
  void failed() noexcept override { listener->failed(); }
  void backward_begins(const cox::detail::BackwardPass&) override { visits.backward_begins(); }
  void backward_ended(cox::detail::BackwardKind) override { visits.parts().clock.backward_ended(); }

 private:
  const BlockMap map_;

 public:
  Sink sink;
  std::shared_ptr<cox::detail::VisitListener> listener;
  cox::detail::VisitWatch& visits;  // owned by the listener

 private:
  std::optional<cox::detail::SavedTensorScope> saving_;
  std::optional<cox::detail::StreamScope> stream_;
};

struct GainImpl : torch::nn::Module {
  GainImpl() : gain(register_parameter("gain", torch::full({4}, 0.5))) {}
  Tensor forward(const Tensor& x) { return x * gain; }
  Tensor gain;
};
TORCH_MODULE(Gain);

struct NetImpl : torch::nn::Module {
  Gain a{register_module("a", Gain())};
  Gain b{register_module("b", Gain())};
  Tensor middle(std::int64_t rows = 3) const {
    return torch::linspace(-1, 1, 4 * rows).view({rows, 4}).requires_grad_() * 1;
  }
};
TORCH_MODULE(Net);

}  // namespace visits_test
