// Plants an overflow in one block of one rank. The merged evidence of all ranks must name this
// block and rank, and no other block, every time.
#include <torch/torch.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "sdk/src/memory/offload.h"
#include "sdk/src/precision/fp8_block.h"
#include "sdk/src/precision/fp8_operator.h"
#include "tests/sdk/precision/fault_support.h"
#include "tests/sdk/precision/watched_blocks.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace fault_test;
using cox::BlockEvidence;
using cox::BlockId;
using cox::MemoryAction;
using cox::Precision;
using cox::RankId;
using cox::detail::HealthVerdict;

namespace {

constexpr int kCases = 300;
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
  chosen.fault.place = any(2) == 0 ? Place::inside : Place::result;
  chosen.fault.element = static_cast<std::int64_t>(any(1000));
  chosen.fault.format = type_of(chosen.format, chosen.fault.pass);
  return chosen;
}

struct Outcome {
  bool went_wrong = false;  // the rank has a non-finite gradient
  std::vector<BlockEvidence> evidence;
};

class Ranks {
 public:
  explicit Ranks(Victim victim) : victim_(std::move(victim)), watched_(victim_.module) {
    for (std::size_t b = 0; b < watched_.blocks.size(); ++b) {
      fp8_.push_back(std::make_shared<cox::detail::Fp8Block>(cox::detail::Fp8Recipe{}));
      visits().parts().steering.set_fp8(block_number(b),
                                        std::make_shared<cox::detail::Fp8Products>(fp8_.back()));
    }
  }

  std::size_t calls() const { return victim_.called.size(); }
  std::size_t block_of(std::size_t call) const {
    return watched_.block(victim_.called[call]).value();
  }
  bool was_in_fp8() const {
    return std::any_of(fp8_.begin(), fp8_.end(),
                       [](const auto& block) { return block->take_counts().sampled > 0; });
  }
  HealthVerdict verdict() const { return watched_.verdict(); }

  template <class Random>
  void plan(Random& random, Precision format) {
    for (std::size_t b = 0; b < watched_.blocks.size(); ++b) {
      visits().parts().steering.set_action(block_number(b),
                                           static_cast<MemoryAction>(random() % 4));
      visits().parts().steering.set_format(block_number(b), format);
    }
  }

  void offload_to(cox::detail::Offloader& offloader) {
    visits().parts().region.set_offload(
        [&](const std::string& block) { return offloader.open_frame(block); });
  }

  Outcome step(RankId rank, const std::vector<Fault>& faults) {
    watched_.begin(kScale);
    const Tensor loss = victim_.loss(faults);
    watched_.health.loss(loss.item<double>());
    (loss * kScale).backward();
    Outcome outcome;
    outcome.went_wrong = std::ranges::any_of(bad_gradients(watched_.parameters),
                                             [](auto count) { return count > 0; });
    outcome.evidence = watched_.end(rank);
    return outcome;
  }

 private:
  static BlockId block_number(std::size_t b) { return BlockId(static_cast<BlockId::rep>(b)); }
  cox::detail::VisitWatch& visits() { return *watched_.blocks.visits(); }

  Victim victim_;
  Watched watched_;
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

// One rank has the fault, another computes without it; a third adds nothing.
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
               << static_cast<int>(chosen.fault.kind) << " result "
               << (chosen.fault.place == Place::result) << " element " << chosen.fault.element
               << " format " << static_cast<int>(chosen.format) << " verdict "
               << static_cast<int>(ranks.verdict().where));
  if (outcome.went_wrong) CHECK(is_named(evidence, chosen));
  return outcome.went_wrong;
}

// A fault that a ReLU or a missing gradient removes is no overflow and does not count.
void try_all(Victim victim, std::uint32_t seed) {
  torch::manual_seed(seed);
  const TempFolder folder;
  cox::detail::OffloadOptions options;
  options.folder = folder.path();
  options.smallest_bytes = 1;
  cox::detail::Offloader offloader(std::move(options));
  std::mt19937 random(seed);
  Ranks ranks(std::move(victim));
  ranks.offload_to(offloader);
  for (int done = 0; done < kCases;) done += try_case(ranks, random) ? 1 : 0;
  CHECK(ranks.was_in_fp8());
}

}  // namespace

TEST_SUITE("overflow blame") {
  TEST_CASE("300 overflows in MLP blocks are all named") {
    try_all(mlp(), 1);
  }
  TEST_CASE("300 overflows in a ConvNet with batch statistics are all named") {
    try_all(conv_net(), 2);
  }
  TEST_CASE("300 overflows in blocks that are visited twice and skipped are all named") {
    try_all(graph(), 4);
  }
  TEST_CASE("300 overflows in blocks beside a residual stream are all named") {
    try_all(residual(), 5);
  }
  TEST_CASE("300 overflows in GPT-2 layers are all named") {
    try_all(gpt(), 3);
  }
}
