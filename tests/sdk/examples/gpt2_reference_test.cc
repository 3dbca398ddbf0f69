#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/io/json.h"
#include "coxswain/safetensors.h"
#include "sdk/examples/gpt2/reference.h"
#include "sdk/examples/gpt2/reference_check.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

using gpt2::Check;
using gpt2::Reference;

constexpr const char* kFolder = COX_TEST_DATA "/gpt2-reference";

Reference recorded() {
  auto reference = gpt2::read_reference(kFolder);
  REQUIRE_MESSAGE(reference.ok(), reference.status().text());
  return *std::move(reference);
}

std::vector<Check> checks_of(const Reference& reference, gpt2::RankRows rows = {},
                             const gpt2::TrainerFactory& trainer = gpt2::plain_trainer) {
  at::set_num_threads(1);
  auto checks = gpt2::check_reference(reference, rows, trainer);
  REQUIRE_MESSAGE(checks.ok(), checks.status().text());
  return *std::move(checks);
}

std::vector<std::string> failures(const std::vector<Check>& checks) {
  std::vector<std::string> names;
  for (const Check& check : checks) {
    if (!check.ok()) names.push_back(check.name + " at " + check.where);
  }
  return names;
}

// Two ranks in one process: this rank's rows and the other's, with averaged gradients.
class TwoRanksInOne final : public gpt2::ReferenceTrainer {
 public:
  TwoRanksInOne(const gpt2::ReferenceTask& task, std::vector<gpt2::ReferenceTask> parts)
      : model_(task.model), parts_(std::move(parts)), optimizer_(gpt2::reference_groups(model_)) {}

  gpt2::StepLoss backward() override {
    optimizer_.zero_grad();
    gpt2::StepLoss out = losses(true);
    for (const auto& named : gpt2::named_parameters(*model_)) {
      named.tensor.mutable_grad().div_(static_cast<double>(parts_.size()));
    }
    return out;
  }
  void update() override { optimizer_.step(); }
  gpt2::StepLoss evaluate() override { return losses(false); }

 private:
  gpt2::StepLoss losses(bool with_gradient) {
    gpt2::StepLoss out;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const at::Tensor loss = model_->loss(parts_[i].inputs, parts_[i].targets);
      if (with_gradient) loss.backward();
      const double value = loss.item<double>();
      out.mean += value / static_cast<double>(parts_.size());
      if (i == 0) out.local = value;
    }
    return out;
  }

  gpt2::Gpt2 model_;
  std::vector<gpt2::ReferenceTask> parts_;
  cox::AdamW optimizer_;
};

TEST_SUITE("sdk.examples") {
  TEST_CASE("the recorded configuration is read") {
    const auto config = gpt2::read_config(COX_TEST_DATA "/gpt2-reference/config.json");
    REQUIRE_MESSAGE(config.ok(), config.status().text());
    CHECK(config->vocab_size == 256);
    CHECK(config->n_positions == 128);
    CHECK(config->n_embd == 32);
    CHECK(config->n_layer == 2);
    CHECK(config->n_head == 2);
    CHECK(config->inner() == 128);
    CHECK(config->resid_pdrop == 0);
    CHECK(config->layer_norm_epsilon == 1e-5);
    CHECK(config->activation_function == "gelu_new");
  }

  TEST_CASE("the recorded model is read, and written back byte for byte") {
    const TempFolder folder;
    const std::string source = COX_TEST_DATA "/gpt2-reference/model.safetensors";
    const auto file = cox::read_safetensors(source);
    REQUIRE_MESSAGE(file.ok(), file.status().text());
    CHECK(file->tensors.size() == 28);
    REQUIRE(cox::write_safetensors(folder / "copy", file->tensors, file->metadata).ok());
    CHECK(read_bytes(folder / "copy") == read_bytes(source));
  }

  TEST_CASE("training the recorded model gives the recorded numbers") {
    const auto checks = checks_of(recorded());
    CHECK(checks.size() == 14);
    CHECK(failures(checks) == std::vector<std::string>{});
    std::ostringstream out;
    CHECK(gpt2::print_checks(out, checks));
    MESSAGE(out.str());
  }

  TEST_CASE("two ranks with half of the rows each are compared with the recorded two ranks") {
    const Reference reference = recorded();
    for (const int rank : {0, 1}) {
      const gpt2::RankRows mine{.rank = rank, .world = 2};
      const gpt2::RankRows theirs{.rank = 1 - rank, .world = 2};
      const auto make = [&](const gpt2::ReferenceTask& task) {
        std::vector<gpt2::ReferenceTask> parts = {task, task};
        parts[1].inputs = theirs.of(reference.inputs());
        parts[1].targets = theirs.of(reference.targets());
        return std::make_unique<TwoRanksInOne>(task, std::move(parts));
      };
      const auto checks = checks_of(reference, mine, make);
      CHECK(checks.back().name == "ddp_two_ranks.rank_losses");
      CHECK(failures(checks) == std::vector<std::string>{});
    }
  }

  TEST_CASE("a number that differs a little more than its limit fails its check and no other") {
    Reference reference = recorded();
    reference.plain.losses[7] *= 1 + 2e-5;
    reference.plain.first_gradient["transformer.wpe.weight"] *= 1 + 2e-4;
    reference.fused.total_gradient[3] *= 1 + 2e-4;
    reference.logits_sample0 = reference.logits_sample0.clone();
    reference.logits_sample0[2][5] += 3e-5;
    reference.shapes["transformer.ln_f.bias"] = {127};
    reference.per_sample_loss.pop_back();
    const std::vector<std::string> expected = {
        "parameter_shapes at transformer.ln_f.bias",
        "fp32.logits_sample0.absolute at element 517",
        "per_sample_loss at the number of values",
        "fp32.losses at step 7",
        "fp32.grad_norm at transformer.wpe.weight",
        "fp32_fused_attention.total_grad_norm at step 3",
    };
    const auto checks = checks_of(reference);
    CHECK(failures(checks) == expected);
    std::ostringstream out;
    CHECK_FALSE(gpt2::print_checks(out, checks));
  }

  TEST_CASE(
      "deviations are relative where they can be and infinite where nothing can be compared") {
    using gpt2::Deviation;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    CHECK(gpt2::deviation(2, 2.5, Deviation::relative) == 0.25);
    CHECK(gpt2::deviation(2, 2.5, Deviation::absolute) == 0.5);
    CHECK(gpt2::deviation(0, 0.5, Deviation::relative) == 0.5);
    CHECK(std::isinf(gpt2::deviation(1, nan, Deviation::relative)));
    CHECK(std::isinf(gpt2::worst_of({1, 2}, {1}, "step").deviation));
    CHECK(gpt2::worst_of({{"a", 1.0}}, {{"a", 1.0}, {"b", 1.0}}).where == "b");
    CHECK(gpt2::worst_of({{"a", 1.0}, {"b", 1.0}}, {{"a", 1.0}}).where == "b");
    CHECK(gpt2::worst_of({4, 4, 4}, {4, 5, 4}, "step").where == "step 1");
  }

  TEST_CASE("a check is one line of JSON, also when its deviation is no number") {
    const Check fine{.name = "a", .worst = 1.25e-7, .limit = 1e-5, .where = "step 3"};
    CHECK(gpt2::to_json(fine) ==
          "{\"check\":\"a\",\"worst\":1.25e-07,\"limit\":1e-05,\"ok\":true,\"where\":\"step 3\"}");
    const Check wrong{
        .name = "a", .worst = std::numeric_limits<double>::infinity(), .limit = 1, .where = "x"};
    CHECK(gpt2::to_json(wrong).find("\"worst\":null,\"limit\":1,\"ok\":false") !=
          std::string::npos);
    CHECK(cox::io::parse_json(gpt2::to_json(wrong)).ok());
  }

  TEST_CASE("a folder that is incomplete or damaged is refused by the name of the file") {
    const TempFolder folder;
    const auto refusal = [&] {
      const auto reference = gpt2::read_reference(folder.path());
      return reference.ok() ? std::string("accepted") : reference.status().message();
    };
    const auto mentions = [&](const std::string& part) {
      return refusal().find(part) != std::string::npos;
    };
    CHECK(mentions("config.json"));
    for (const char* name : {"config.json", "batch.safetensors", "logits_sample0.safetensors"}) {
      CHECK(mentions(name));
      std::filesystem::copy_file(std::filesystem::path(kFolder) / name, folder / name);
    }
    CHECK(mentions("expected.json"));
    folder.write("expected.json", "{\"fp32\":{}}");
    CHECK(mentions("losses"));
    const std::string whole = read_bytes(std::filesystem::path(kFolder) / "expected.json");
    folder.write("expected.json", whole.substr(0, whole.size() / 2));
    CHECK(mentions("expected.json: JSON, byte"));
    folder.write("expected.json", whole);
    CHECK(refusal() == "accepted");
    folder.write("batch.safetensors", "short");
    CHECK(mentions("batch.safetensors"));
  }

  TEST_CASE("a world that does not divide the batch is refused") {
    const Reference reference = recorded();
    for (const gpt2::RankRows& rows :
         {gpt2::RankRows{.rank = 0, .world = 3}, gpt2::RankRows{.rank = 2, .world = 2},
          gpt2::RankRows{.rank = 0, .world = 0}}) {
      CHECK_FALSE(gpt2::check_reference(reference, rows, gpt2::plain_trainer).ok());
    }
  }
}

}  // namespace
