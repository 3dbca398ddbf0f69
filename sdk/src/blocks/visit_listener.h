// VisitListener connects the visits of blocks to LibTorch. The operator stream reports the
// operators of visits to the listener, and autograd asks it for the hooks of saved tensors. The
// listener calls the parts of its VisitWatch in order.
//
//   operator stream -> begin(), end() -> [tape of the region or tile, meter, comparison]
//   autograd saves -> make_hooks() -> [clock: counts] -> [comparison] -> [region: keeps or drops]
//
// The stream's follower tells the VisitWatch which parameters operators read. Training thread only.
// Hooks share ownership of the listener, and run on the thread that runs backward.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "sdk/src/blocks/visit_watch.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/saved_tensors.h"

namespace cox::detail {

class VisitListener final : public SavedTensorFrame,
                            public OperatorListener,
                            public std::enable_shared_from_this<VisitListener> {
 public:
  explicit VisitListener(BlockSink& sink, VisitClock::Now now = &steady_now)
      : visits_(sink, std::move(now)) {}

  VisitWatch& visits() { return visits_; }

  bool has_formats() const override { return visits_.parts().steering.has_narrow(); }
  std::optional<ProductFormat> product_format() const override;
  // Returns whether the next operator belongs to a recorded region or tile, or to a visit whose
  // operators are metered.
  bool wants_calls() const override {
    return visits_.parts().region.recording() != nullptr || is_metered();
  }
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  bool begin_tile(std::string_view name, TileDrop drop) override {
    return visits_.parts().region.begin_tile(name, drop);
  }
  void end_tile() noexcept override { visits_.parts().region.end_tile(); }
  bool begin_block(std::string_view name) override {
    visits_.begin_scope(name);
    return true;
  }
  void end_block() noexcept override { visits_.end_scope(); }

 private:
  bool is_metered() const { return visits_.parts().meter.is_on() && visits_.current(); }

  VisitWatch visits_;
};

}  // namespace cox::detail
