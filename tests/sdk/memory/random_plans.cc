#include "tests/sdk/memory/random_plans.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/plan.h"
#include "sdk/examples/models/models.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/offload.h"
#include "sdk/src/precision/fp8_block.h"
#include "sdk/src/precision/fp8_operator.h"
#include "tests/sdk/same_bits.h"

namespace cox::test {
namespace {

using at::Tensor;
using plain_models::ModelCase;
using Generator = std::mt19937_64;
using Tensors = std::vector<Tensor>;

constexpr std::uint64_t kSteps = 2;
constexpr std::size_t kModels = 7;

ModelCase model_at(std::size_t place) {
  constexpr std::uint64_t kSeed = 5;
  switch (place) {
    case 0:
      return plain_models::make_resnet(kSeed);
    case 1:
      return plain_models::make_dcgan(kSeed);
    case 2:
      return plain_models::make_unet(kSeed);
    case 3:
      return plain_models::make_lstm(kSeed);
    case 4:
      return plain_models::make_gpt2(kSeed);
    case 5:
      return plain_models::make_scripted(kSeed);
    default:
      return plain_models::make_field(kSeed);
  }
}

// The numbers of a training, equal for the trial and its reference.
struct Numbers {
  // Formats of blocks, the program's own autocast, or neither; the seed alternates them.
  enum class Casts : std::uint8_t { none, blocks, autocast } casts = Casts::none;
  std::uint64_t seed = 0;  // for formats and batches
};

// A user's own bf16 autocast around the forward pass.
class AutocastScope {
 public:
  explicit AutocastScope(Numbers::Casts casts) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, casts == Numbers::Casts::autocast);
  }
  ~AutocastScope() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
};

// All results of a training, and the error that ended it, if any.
struct Outcome {
  std::vector<Tensors> steps;
  std::string error;
};

std::string difference(const Outcome& kept, const Outcome& planned) {
  if (planned.error != kept.error) return "throws: " + planned.error;
  for (std::size_t s = 0; s < kept.steps.size(); ++s) {
    for (std::size_t i = 0; i < kept.steps[s].size(); ++i) {
      const Tensor& a = kept.steps[s][i];
      const Tensor& b = planned.steps[s][i];
      const bool is_same =
          a.defined() == b.defined() && (!a.defined() || sdk_test::same_bits(a, b));
      if (!is_same) return "step " + std::to_string(s) + ", number " + std::to_string(i);
    }
  }
  return {};
}

detail::OffloadOptions options_for(const ModelCase& it, const std::filesystem::path& tier) {
  detail::OffloadOptions options;
  options.device = it.model->parameters().front().device();
  options.folder = tier;
  options.smallest_bytes = 256;  // the models are small
  return options;
}

// One model from its first weights, in steps with steered blocks.
class Training {
 public:
  Training(std::size_t model, Way way, Numbers numbers, const std::filesystem::path& tier,
           PlanTrials* counts)
      : model_(model_at(model)),
        way_(way),
        numbers_(numbers),
        counts_(counts),
        formats_(numbers.seed),
        offloader_(options_for(model_, tier)) {
    blocks_.attach(*model_.model);
    const PrecisionConfig config;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      fp8_.push_back(std::make_shared<detail::Fp8Block>(detail::fp8_recipe(config)));
      blocks_.visits()->parts().steering.set_fp8(
          id(b), std::make_shared<detail::Fp8Products>(fp8_.back()));
    }
    blocks_.visits()->parts().region.set_offload(
        [this](const std::string& block) { return offloader_.open_frame(block); });
  }
  ~Training() { blocks_.release(); }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // Draws plans from `plan_seed`. Without a seed, keeps every block and turns the stream off if
  // numbers do not depend on it.
  Outcome run(std::optional<std::uint64_t> plan_seed) {
    Outcome outcome;
    torch::manual_seed(static_cast<std::int64_t>(numbers_.seed));
    torch::optim::SGD optimizer(model_.model->parameters(), 0.01);
    const Plan plan;
    if (plan_seed) choices_ = std::make_shared<Generator>(*plan_seed);
    for (std::uint64_t step = 0; step < kSteps && outcome.error.empty(); ++step) {
      set_formats();
      if (choices_ != nullptr) steer();
      optimizer.zero_grad();
      offloader_.begin_step();
      if (choices_ != nullptr || numbers_.casts != Numbers::Casts::none) blocks_.begin_step();
      try {
        outcome.steps.push_back(work(numbers_.seed + 10 * step));
      } catch (const std::exception& error) {
        outcome.error = error.what();
      }
      detail::StepOutput output;
      blocks_.end_step({RankId(0), RoundId(step), plan, 4, StepId(step)}, output);
      if (choices_ != nullptr) counts_->offloaded += offloader_.counts().written_bytes;
      if (!outcome.error.empty()) return outcome;
      optimizer.step();
      for (const auto& fp8 : fp8_) fp8->end_step();
    }
    return outcome;
  }

 private:
  static BlockId id(std::size_t b) { return BlockId(static_cast<BlockId::rep>(b)); }

  void set_formats() {
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      Precision format = Precision::fp32;
      if (numbers_.casts == Numbers::Casts::blocks && formats_() % 3 != 0)
        format = formats_() % 2 == 0 ? Precision::bf16 : Precision::fp8;
      blocks_.visits()->parts().steering.set_format(id(b), format);
      if (choices_ != nullptr) counts_->narrow += format != Precision::fp32;
    }
  }

  void steer() {
    ++counts_->plans;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      std::vector<detail::HoldChoice> levels;
      for (unsigned level = 1; level <= kRecomputeLevels; ++level) levels.push_back(choice(level));
      blocks_.visits()->parts().steering.set_levels(id(b), std::move(levels));
      blocks_.visits()->parts().steering.set_action(id(b), action());
    }
  }

  // Half of the blocks get a level; the others are kept, recomputed in full, or offloaded.
  MemoryAction action() {
    const std::uint64_t drawn = (*choices_)() % 8;
    if (drawn < 4)
      return recompute_level(1 + static_cast<unsigned>((*choices_)() % kRecomputeLevels));
    if (drawn == 4) return MemoryAction::keep;
    if (drawn < 7) return MemoryAction::offload;
    ++counts_->full;
    return MemoryAction::recompute;
  }

  detail::HoldChoice choice(unsigned level) {
    return [choices = choices_, counts = counts_, level](const detail::SavedValue&) {
      const bool is_kept = (*choices)() % (kRecomputeLevels + 1) < level;
      counts->dropped += !is_kept;
      return is_kept ? detail::Hold::keep : detail::Hold::drop;
    };
  }

  Tensor loss_of(std::uint64_t batch, Tensors& bits) {
    const AutocastScope autocast(numbers_.casts);
    const Tensor loss = model_.loss(batch);
    bits.push_back(loss.detach().clone());
    return loss;
  }

  Tensors work(std::uint64_t batch) {
    Tensors bits;
    const Tensor loss = loss_of(batch, bits);
    if (way_ == Way::together) {
      (loss + loss_of(batch + 1, bits)).backward();
    } else if (way_ == Way::twice_differentiated) {
      differentiate_twice(loss, bits);
    } else {
      if (way_ == Way::retained) loss.backward({}, /*retain_graph=*/true);
      loss.backward();
      if (way_ == Way::accumulated) loss_of(batch + 1, bits).backward();
    }
    for (const Tensor& parameter : model_.model->parameters()) {
      const Tensor& gradient = parameter.grad();
      bits.push_back(gradient.defined() ? gradient.clone() : Tensor());
    }
    for (const Tensor& buffer : model_.model->buffers()) bits.push_back(buffer.clone());
    bits.push_back(at::detail::getDefaultCPUGenerator().get_state());
    return bits;
  }

  void differentiate_twice(const Tensor& loss, Tensors& bits) {
    const auto gradients = torch::autograd::grad({loss}, model_.model->parameters(), {},
                                                 /*retain_graph=*/true, /*create_graph=*/true,
                                                 /*allow_unused=*/true);
    Tensor sum = loss;
    for (const Tensor& gradient : gradients) {
      if (!gradient.defined()) continue;
      bits.push_back(gradient.detach().clone());
      sum = sum + gradient.square().sum();
    }
    sum.backward();
  }

  ModelCase model_;
  const Way way_;
  const Numbers numbers_;
  PlanTrials* const counts_;
  Generator formats_;
  std::shared_ptr<Generator> choices_;  // null if every block is kept
  detail::Offloader offloader_;
  detail::BlockWatch blocks_;
  std::vector<std::shared_ptr<detail::Fp8Block>> fp8_;
};

void try_one(std::size_t model, Way way, std::uint64_t seed, const std::filesystem::path& tier,
             PlanTrials& trials) {
  const Numbers numbers{static_cast<Numbers::Casts>(seed % 3), seed};
  const Outcome kept = Training(model, way, numbers, tier, &trials).run(std::nullopt);
  if (!kept.error.empty()) {
    ++trials.refused;
    return;
  }
  const Outcome planned = Training(model, way, numbers, tier, &trials).run(seed + 1);
  const std::string found = difference(kept, planned);
  if (found.empty()) return;
  trials.different.push_back(trials.model + ", " + name_of(way) + ", seed " + std::to_string(seed) +
                             ": " + found);
}

}  // namespace

const char* name_of(Way way) {
  switch (way) {
    case Way::once:
      return "one batch a step";
    case Way::accumulated:
      return "two batches, accumulated";
    case Way::together:
      return "two batches, one backward pass";
    case Way::retained:
      return "a retained graph";
    case Way::twice_differentiated:
      return "differentiated twice";
  }
  return "";
}

std::vector<PlanTrials> try_random_plans(std::uint64_t seed, int trials,
                                         const std::filesystem::path& tier) {
  const Status installed = detail::install_saved_tensor_engine();
  if (!installed.ok()) throw std::runtime_error(installed.text());
  std::vector<PlanTrials> all;
  for (std::size_t m = 0; m < kModels; ++m) {
    for (std::size_t w = 0; w < kWays; ++w) {
      PlanTrials& found = all.emplace_back();
      found.model = model_at(m).name;
      found.way = static_cast<Way>(w);
      for (int t = 0; t < trials; ++t) try_one(m, found.way, seed++, tier, found);
    }
  }
  return all;
}

}  // namespace cox::test
