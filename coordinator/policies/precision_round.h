// One round of policy `precision` before it speaks: takes in requests, reads the evidence of every
// block, and says which blocks should change, in the order in which that matters. Made for one call
// of the policy; its input must outlive it.
//
//   trouble   of a block, from the first evidence on that covers only rounds in its format: a safer
//             format at once, and no lower one for cooldown_rounds, twice as long each time
//   good      signals for patience_rounds: 8 bits; a quarter of the blocks in one round at most,
//             those that gain most first; with a straggler that loses its time in computing, its
//             costliest blocks after half the patience
//   rested    from trouble: back to the format of the start
// Apart from trouble, rules and requests a block keeps its format for dwell_rounds. Timings never
// count against a format. A round without reports teaches nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/policy.h"
#include "coordinator/policies/precision_choice.h"
#include "coordinator/policies/precision_notes.h"

namespace cox {

struct BlockMove {
  std::size_t block = 0;
  Precision from = Precision::fp32;
  Precision to = Precision::fp32;
  FormatCause cause = FormatCause::none;
  double amount = 0;  // see FormatCause
  RankId rank{-1};    // whose evidence it was
  bool for_straggler = false;
  Leeway leeway;
};

// A request of this round, or one that is over.
struct RequestEvent {
  enum class What : std::uint8_t { taken, over, unknown_block, not_capable, forbidden, too_many };
  What what = What::taken;
  StandingRequest request;
};

// A block whose signals allow 8 bits, which something else forbids.
struct BlockWaits {
  std::size_t block = 0;
  FormatVeto veto = FormatVeto::none;  // none: it dwells or rests ...
  std::uint64_t until = 0;             // ... until this round
};

// A rank that is slow because of what it computes.
struct ComputeStraggler {
  RankId rank{-1};
  double slowness = 0;  // own time over the median
};

class PrecisionRound {
 public:
  PrecisionRound(const PolicyInput& input, PrecisionNotes& notes);

  const std::vector<BlockMove>& moves() const { return moves_; }
  const std::vector<RequestEvent>& requests() const { return requests_; }
  const std::vector<BlockWaits>& waits() const { return waits_; }
  const std::optional<ComputeStraggler>& straggler() const { return straggler_; }
  // Trouble in a block that settings or requests hold: told, not acted on.
  const std::vector<BlockMove>& held() const { return held_; }

 private:
  void end_requests();
  void take_requests();
  void take_request(const RankSignal& report);
  void learn_times();
  void find_straggler();
  void look_at_memory();
  void read_blocks();
  void read_block(std::size_t block);
  std::optional<BlockMove> trouble_of(std::size_t block, Precision now) const;
  void note_trouble(BlockNotes& notes, const BlockMove& trouble);
  void note_signals(std::size_t block, BlockNotes& notes, bool is_settled);
  bool signals_are_good(const BlockNotes& notes, bool is_first) const;
  void choose(std::size_t block, const Leeway& leeway);
  void choose_lower(std::size_t block, const Leeway& leeway, Precision base);
  void lower_some();
  std::uint64_t free_from(const BlockNotes& notes) const;
  BlockMove move_of(std::size_t block, Precision to, FormatCause cause) const;

  const PolicyInput& input_;
  const PrecisionConfig& config_;
  PrecisionNotes& notes_;
  std::uint64_t round_;
  std::uint64_t applied_min_ = 0;
  float smallest_scale_ = 0;  // of the loss, over ranks; 0 = none at work
  double memory_ratio_ = 0;   // largest peak over limit
  std::optional<ComputeStraggler> straggler_;
  std::vector<std::size_t> costly_;  // blocks that go first for it
  std::vector<BlockMove> moves_;
  std::vector<BlockMove> ready_;  // for 8 bits
  std::vector<BlockMove> held_;
  std::vector<RequestEvent> requests_;
  std::vector<BlockWaits> waits_;
};

}  // namespace cox
