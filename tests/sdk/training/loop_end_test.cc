// The state after a training loop, however the loop ended.
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "coxswain/adamw.h"
#include "small_training.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

struct Seen {
  std::atomic<bool> is_gone{false};
  std::atomic<bool> was_read_late{false};
};

// A slow data set, so that batches of later steps are always being loaded.
class Fleeting final : public Dataset {
 public:
  explicit Fleeting(std::shared_ptr<Seen> seen) : seen_(std::move(seen)) {}
  ~Fleeting() override { seen_->is_gone = true; }
  std::int64_t size() const override { return data_.size(); }
  Batch get(std::span<const std::int64_t> indices) const override {
    const std::shared_ptr<Seen> seen = seen_;
    const Batch batch = data_.get(indices);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (seen->is_gone) seen->was_read_late = true;
    return batch;
  }

 private:
  SmallData data_;
  std::shared_ptr<Seen> seen_;
};

enum class Leave { at_its_end, by_break, by_exception };

void loop(Trainer& trainer, SmallModel& model, const Dataset& data, Leave leave) {
  for (auto& step : trainer.steps(data)) {
    step.backward(step.forward([&] { return model->loss(step.batch()); }));
    step.update();
    if (step.number() < 2) continue;
    if (leave == Leave::by_break) break;
    if (leave == Leave::by_exception) throw std::runtime_error("enough");
  }
}

}  // namespace

TEST_SUITE("trainer on one rank") {
  TEST_CASE("a data set may go when its loop was left, also with batches got ahead of time") {
    for (const Leave leave : {Leave::at_its_end, Leave::by_break, Leave::by_exception}) {
      CAPTURE(static_cast<int>(leave));
      const auto seen = std::make_shared<Seen>();
      auto session = solo_session();
      SmallModel model;
      AdamW optimizer(model->parameters(), {.lr = 0.01});
      Trainer trainer(session, *model, optimizer, {.prefetch = 3, .steps = 5});
      try {
        const Fleeting data(seen);
        loop(trainer, model, data, leave);
      } catch (const std::runtime_error&) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      CHECK_FALSE(seen->was_read_late.load());
    }
  }
}
