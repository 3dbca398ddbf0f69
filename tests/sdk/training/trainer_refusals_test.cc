// Mistakes with which a loop would train nothing, or the wrong thing.
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "coxswain/adamw.h"
#include "small_training.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

// Claims more samples in every batch than requested.
class Miscounting final : public Dataset {
 public:
  explicit Miscounting(std::int64_t more) : more_(more) {}
  std::int64_t size() const override { return data_.size(); }
  Batch get(std::span<const std::int64_t> indices) const override {
    Batch batch = data_.get(indices);
    batch.samples += more_;
    return batch;
  }

 private:
  SmallData data_;
  std::int64_t more_;
};

}  // namespace

TEST_SUITE("trainer on one rank") {
  TEST_CASE("an optimizer that holds none of the model's parameters is refused") {
    SmallModel model;
    SmallModel other;
    const auto told = [&](auto&& optimizer) {
      return error_of([&] {
        auto session = solo_session();
        Trainer trainer(session, *model, optimizer, {.steps = 1});
      });
    };
    const std::string expected = "found an optimizer without any";
    CHECK(told(AdamW(other->parameters())).find(expected) != std::string::npos);
    CHECK(told(torch::optim::SGD(other->parameters(), 0.1)).find(expected) != std::string::npos);
    CHECK(told(AdamW(model->second->parameters())).empty());
    CHECK(told(torch::optim::SGD(model->second->parameters(), 0.1)).empty());
  }

  TEST_CASE("a learning rate that is negative or not finite is refused before an update") {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInf = std::numeric_limits<double>::infinity();
    for (const double rate : {kNan, kInf, -kInf, -0.1}) {
      CAPTURE(rate);
      SmallModel model;
      const std::string told = error_of([&] {
        auto session = solo_session();
        torch::optim::SGD optimizer(model->parameters(), 0.1);
        Trainer trainer(session, *model, optimizer, {.steps = 3, .learning_rate = [&](auto step) {
                                                       return step == 1 ? rate : 0.1;
                                                     }});
        train(trainer, model, SmallData());
      });
      CAPTURE(told);
      CHECK(told.find("expected a number of 0 or more, found") != std::string::npos);
      for (const at::Tensor& p : model->parameters()) CHECK(at::isfinite(p).all().item<bool>());
    }
  }

  TEST_CASE("a batch of another number of samples than asked for is an error with both numbers") {
    for (const std::size_t prefetch : {0u, 2u}) {
      for (const std::int64_t more : {-8, -1, 1}) {
        const std::string told = error_of([&] {
          auto session = solo_session();
          SmallModel model;
          AdamW optimizer(model->parameters());
          Trainer trainer(session, *model, optimizer, {.prefetch = prefetch, .steps = 1});
          const Miscounting data(more);
          for (auto& step : trainer.steps(data)) {
            step.backward(step.forward([&] { return model->loss(step.batch()); }));
            step.update();
          }
        });
        CHECK(told.find("of 8 samples") != std::string::npos);
        CHECK(told.find("found Batch::samples = " + std::to_string(8 + more)) != std::string::npos);
      }
    }
  }

  TEST_CASE("scales that each rank remembers by itself are refused in reproducible mode") {
    const std::string told = error_of([&] {
      auto session =
          solo_session({"--cox.reduction.reproducible=on", "--cox.precision.fp8_scaling=delayed"});
      SmallModel model;
      AdamW optimizer(model->parameters());
      Trainer trainer(session, *model, optimizer, {.micro_batch = 4, .steps = 1});
    });
    CHECK(told.find("fp8_scaling=current") != std::string::npos);
  }
}
