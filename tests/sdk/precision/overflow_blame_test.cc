// An overflow is put into one block of one rank; the evidence of all ranks together must name that
// block and that rank, and no other block, every time.
#include <torch/torch.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "sdk/src/memory/offload.h"
#include "sdk/src/precision/fp8_block.h"
#include "tests/sdk/precision/fault_support.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace fault_test;
using cox::BlockEvidence;
using cox::BlockId;
using cox::MemoryAction;
using cox::Precision;
using cox::RankId;
using cox::detail::BlockHealth;
using cox::detail::BlockRegistry;
using cox::detail::HealthVerdict;

namespace {

constexpr int kCases = 1000;
constexpr float kScale = 1024;
constexpr int kRanks = 3;

struct Case {
  Precision format = Precision::fp16;
  std::size_t call = 0;
  std::size_t block = 0;  // the call's
  RankId rank{};
  Fault fault;
};

at::ScalarType type_of(Precision format, Fault::Pass pass) {
  if (format == Precision::fp32) return at::kFloat;
  if (format == Precision::fp16) return at::kHalf;
  if (format == Precision::bf16) return at::kBFloat16;
  return pass == Fault::Pass::forward ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

template <class Random>
Case any_case(Random& random, std::size_t calls) {
  const auto any = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  Case chosen;
  chosen.format = static_cast<Precision>(any(4));
  chosen.call = any(calls);
  chosen.rank = RankId(static_cast<RankId::rep>(any(kRanks)));
  chosen.fault.pass = any(2) == 0 ? Fault::Pass::forward : Fault::Pass::backward;
  chosen.fault.kind = static_cast<Fault::Kind>(any(3));
  chosen.fault.at_input = any(2) == 0;
  chosen.fault.element = static_cast<std::int64_t>(any(1000));
  chosen.fault.format = type_of(chosen.format, chosen.fault.pass);
  return chosen;
}

struct Outcome {
  bool went_wrong = false;  // some gradient of that rank is not finite
  std::vector<BlockEvidence> evidence;
};

class Ranks {
 public:
  explicit Ranks(Victim victim)
      : victim_(std::move(victim)),
        registry_(*BlockRegistry::discover(*victim_.module)),
        parameters_(victim_.module->parameters()) {
    health_.attach(registry_, parameters_);
    for (std::size_t b = 0; b < registry_.size(); ++b) {
      fp8_.push_back(std::make_shared<cox::detail::Fp8Block>(cox::detail::Fp8Recipe{}));
      registry_.set_fp8(BlockId(static_cast<BlockId::rep>(b)), fp8_.back());
    }
  }
  ~Ranks() { health_.detach(registry_); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  std::size_t calls() const { return victim_.blocks; }
  std::size_t block_of(std::size_t call) const {
    return victim_.called.empty() ? call : victim_.called[call];
  }
  bool was_in_fp8() const {
    return std::any_of(fp8_.begin(), fp8_.end(),
                       [](const auto& block) { return block->take_counts().sampled > 0; });
  }
  const HealthVerdict& verdict() const { return health_.verdict(); }

  template <class Random>
  void plan(Random& random, Precision format) {
    for (std::size_t b = 0; b < registry_.size(); ++b) {
      const BlockId block(static_cast<BlockId::rep>(b));
      const auto action = static_cast<MemoryAction>(random() % 4);
      REQUIRE(registry_.set_action(block, action).ok());
      registry_.set_precision(block, format);
    }
  }

  void offload_to(const cox::detail::OffloadFrames& frames) { registry_.set_offload(frames); }

  Outcome step(RankId rank, const std::vector<Fault>& faults) {
    victim_.module->zero_grad();
    health_.begin_step(kScale);
    const Tensor loss = victim_.loss(faults);
    (loss * kScale).backward();
    const std::vector<std::int64_t> bad = bad_gradients(parameters_);
    health_.parameter_gradients(bad);
    Outcome outcome;
    outcome.went_wrong = std::any_of(bad.begin(), bad.end(), [](auto count) { return count > 0; });
    const auto evidence = health_.end_step(rank);
    outcome.evidence.assign(evidence.begin(), evidence.end());
    return outcome;
  }

 private:
  Victim victim_;
  BlockRegistry registry_;
  std::vector<Tensor> parameters_;
  BlockHealth health_;
  std::vector<std::shared_ptr<cox::detail::Fp8Block>> fp8_;
};

bool is_named(const std::vector<BlockEvidence>& evidence, const Case& chosen) {
  const bool is_forward = chosen.fault.pass == Fault::Pass::forward;
  for (std::size_t b = 0; b < evidence.size(); ++b) {
    const BlockEvidence& each = evidence[b];
    const bool is_right = b == chosen.block
                              ? (each.overflow_forward > 0) == is_forward &&
                                    (each.overflow_backward > 0) != is_forward &&
                                    each.rank_of_overflow == chosen.rank
                              : !each.has_overflow() && each.rank_of_overflow == RankId(-1);
    if (!is_right) return false;
  }
  return true;
}

// One rank has the fault, another computes without; a third has nothing to add.
template <class Random>
bool try_case(Ranks& ranks, Random& random) {
  Case chosen = any_case(random, ranks.calls());
  chosen.block = ranks.block_of(chosen.call);
  ranks.plan(random, chosen.format);
  std::vector<Fault> faults(ranks.calls());
  const RankId well((chosen.rank.value() + 1) % kRanks);
  std::vector<BlockEvidence> evidence = ranks.step(well, faults).evidence;
  const bool nobody = std::none_of(evidence.begin(), evidence.end(),
                                   [](const BlockEvidence& each) { return each.has_overflow(); });
  CHECK(nobody);
  faults[chosen.call] = chosen.fault;
  const Outcome outcome = ranks.step(chosen.rank, faults);
  cox::merge_into(evidence, outcome.evidence);
  INFO("call " << chosen.call << " pass " << static_cast<int>(chosen.fault.pass) << " kind "
               << static_cast<int>(chosen.fault.kind) << " at_input " << chosen.fault.at_input
               << " element " << chosen.fault.element << " format "
               << static_cast<int>(chosen.format) << " verdict "
               << static_cast<int>(ranks.verdict().where));
  if (outcome.went_wrong) CHECK(is_named(evidence, chosen));
  return outcome.went_wrong;
}

enum class Linear { no, yes };  // whether the blocks have products for FP8

// Faults that a ReLU or a missing gradient swallows are no overflows: they do not count.
void try_all(Victim victim, std::uint32_t seed, Linear linear) {
  torch::manual_seed(seed);
  const TempFolder folder;
  cox::detail::OffloadOptions options;
  options.folder = folder.path();
  options.smallest_bytes = 1;
  cox::detail::Offloader offloader(std::move(options));
  std::mt19937 random(seed);
  Ranks ranks(std::move(victim));
  ranks.offload_to(
      [&](const cox::detail::BlockState& state) -> std::shared_ptr<cox::detail::SavedTensorFrame> {
        const auto module = state.module.lock();
        return module ? offloader.open_frame(state.name, *module) : nullptr;
      });
  for (int done = 0; done < kCases;) done += try_case(ranks, random) ? 1 : 0;
  CHECK(ranks.was_in_fp8() == (linear == Linear::yes));
}

}  // namespace

TEST_SUITE("overflow blame") {
  TEST_CASE("1,000 overflows in MLP blocks are all named") {
    try_all(mlp(), 1, Linear::yes);
  }
  TEST_CASE("1,000 overflows in a ConvNet with batch statistics are all named") {
    try_all(conv_net(), 2, Linear::no);
  }
  TEST_CASE("1,000 overflows in blocks that are called twice and skipped are all named") {
    try_all(graph(), 4, Linear::yes);
  }
  TEST_CASE("1,000 overflows in blocks beside a residual stream are all named") {
    try_all(residual(), 5, Linear::yes);
  }
  TEST_CASE("1,000 overflows in GPT-2 layers are all named") {
    try_all(gpt(), 3, Linear::yes);
  }
}
