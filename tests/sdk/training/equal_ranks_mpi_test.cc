// Ranks that would train apart get an error with the difference and its place.
#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/trainer.h"
#include "small_training.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

bool says(const std::string& message, const std::string& part) {
  CAPTURE(message);
  CAPTURE(part);
  const bool found = message.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

// The samples of SmallData, moved by `shift`, or by a new number at each reading.
class OtherData final : public Dataset {
 public:
  enum class Noise { none, fresh };
  explicit OtherData(double shift, Noise noise = Noise::none) : shift_(shift), noise_(noise) {}
  std::int64_t size() const override { return plain_.size(); }
  Batch get(std::span<const std::int64_t> indices) const override {
    Batch batch = plain_.get(indices);
    if (noise_ == Noise::fresh) shift_ += 1;
    batch.inputs += shift_;
    return batch;
  }

 private:
  SmallData plain_;
  mutable double shift_;
  Noise noise_;
};

struct Job {
  explicit Job(const std::vector<std::string>& flags = {}) : session(solo_session(flags)) {}
  Session session;
  SmallModel model;

  bool is_last() const { return session.rank() == session.world_size() - 1; }
  std::string last() const { return std::to_string(session.world_size() - 1); }

  // Trains some steps. Calls `after` after each update.
  void train(
      AdamW& optimizer, TrainerOptions options, const Dataset& data,
      const std::function<void(std::uint64_t)>& after = [](std::uint64_t) {}) {
    options.global_batch = 8;
    Trainer trainer(session, *model, optimizer, options);
    for (auto& step : trainer.steps(data)) {
      step.backward(step.forward([&] { return model->loss(step.batch()); }));
      step.update();
      after(step.number());
    }
  }
};

}  // namespace

TEST_SUITE("equal ranks") {
  TEST_CASE("another learning rate on one rank is an error with the rates of both") {
    const std::string error = error_of([] {
      Job job;
      AdamW optimizer(job.model->parameters());
      const double rate = job.is_last() ? 1 : 0.001;
      job.train(optimizer, {.steps = 5, .learning_rate = [=](std::uint64_t) { return rate; }},
                SmallData());
    });
    const std::string last = Job().last();
    says(error, "the learning rate of rank " + last);
    says(error, "0.001 on rank 0");
    says(error, "1 on rank " + last);
  }

  TEST_CASE("a rate that one rank changes by itself in the middle is an error in that step") {
    const std::string error = error_of([] {
      Job job;
      AdamW optimizer(job.model->parameters(), {.lr = 0.01});
      job.train(optimizer, {.steps = 9}, SmallData(), [&](std::uint64_t step) {
        if (step == 3 && job.is_last()) optimizer.set_lr(0.02);
      });
    });
    says(error, "step 4");
    says(error, "the learning rate");
  }

  TEST_CASE("other options of the optimizer are an error before the first step") {
    const std::string ours = error_of([] {
      Job job;
      AdamW optimizer(job.model->parameters(), {.beta2 = job.is_last() ? 0.99 : 0.999});
      job.train(optimizer, {.steps = 1}, SmallData());
    });
    says(ours, "the same options of the optimizer");
    for (const bool differs : {true, false}) {
      const std::string torchs = error_of([differs] {
        Job job;
        torch::optim::SGD optimizer(
            job.model->parameters(),
            torch::optim::SGDOptions(0.1).momentum(differs && job.is_last() ? 0.8 : 0.9));
        Trainer trainer(job.session, *job.model, optimizer, {.global_batch = 8, .steps = 1});
      });
      CHECK(torchs.empty() != differs);
    }
  }

  TEST_CASE("a module with another option is an error before the first step, in every loop") {
    struct Dropped : torch::nn::Module {
      explicit Dropped(double p) { register_module("dropout", torch::nn::Dropout(p)); }
      torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 4))};
    };
    const auto message_of = [](const auto& begin) {
      return error_of([&] {
        Job job;
        Dropped model(job.is_last() ? 0.5 : 0.1);
        begin(job.session, model);
      });
    };
    const auto trainer = [](Session& session, Dropped& model) {
      AdamW optimizer(model.parameters(), {.lr = 0.01});
      TrainerOptions options;
      options.global_batch = 8;
      const Trainer made(session, model, optimizer, options);
    };
    const auto adopted = [](Session& session, Dropped& model) { session.adopt(model); };
    for (const std::string& message : {message_of(trainer), message_of(adopted)}) {
      says(message,
           "options of modules) on all ranks, found a different one from rank 0's on rank ");
    }
  }

  TEST_CASE("other samples in a data set of the same size are an error; fresh noise is not") {
    const auto error_with = [](double shift_of_last, OtherData::Noise noise) {
      return error_of([&] {
        Job job;
        AdamW optimizer(job.model->parameters());
        job.train(optimizer, {.steps = 2}, OtherData(job.is_last() ? shift_of_last : 0, noise));
      });
    };
    says(error_with(1, OtherData::Noise::none), "a data set with the same samples");
    CHECK(error_with(0, OtherData::Noise::none).empty());
    CHECK(error_with(1, OtherData::Noise::fresh).empty());
  }

  TEST_CASE("weights that part are found within reduction.verify_steps, with parameter and size") {
    const auto train = [](const std::string& every) {
      return error_of([&] {
        Job job({"--cox.reduction.verify_steps=" + every});
        AdamW optimizer(job.model->parameters());
        job.train(optimizer, {.steps = 12}, SmallData(), [&](std::uint64_t step) {
          const torch::NoGradGuard no_grad;
          if (step == 5 && job.is_last()) job.model->second->weight[1][2] += 0.25;
        });
      });
    };
    const std::string error = train("4");
    says(error, "step 8");
    says(error, "the weights of rank " + Job().last());
    says(error, "parameter 2 of 4 (Float[3, 16]");
    says(error, "by up to 0.25");
    CHECK(train("0").empty());
  }
}
