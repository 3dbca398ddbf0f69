// Fp8Watch is the actuator for FP8 products of a rank's blocks. The watch gives each block an
// Fp8Block, reads the products' counts once a step as evidence for the coordinator, and saves the
// histories of delayed scaling. Training thread only; does not communicate.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/log.h"
#include "coordinator/core/settings/precision.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/visit_watch.h"
#include "sdk/src/device/transfer.h"
#include "sdk/src/precision/fp8_block.h"

namespace cox::detail {

// Fp8Reading copies the counts of many blocks from one device to the host in one transfer. One
// thread.
class Fp8Reading {
 public:
  Fp8Reading() = default;
  // Takes the waiting counts of the blocks.
  explicit Fp8Reading(const Fp8Blocks& blocks);

  // Adds the counts to their blocks once they have arrived. Returns whether nothing is pending.
  // Never waits.
  bool finish();
  // Blocks until finish() would return true.
  void wait() const;

 private:
  struct Part {
    std::shared_ptr<Fp8Block> block;
    Fp8Waiting waiting;
  };
  std::vector<Part> parts_;
  HostCopy copy_;  // a row for each waiting count
};

class Fp8Watch final : public Steering, public Saving {
 public:
  Fp8Watch(const PrecisionConfig& config, RankId rank, Log log)
      : config_(config), rank_(rank), log_(std::move(log)) {}

  void forget_run() override;
  const SavedRow* saved_row() const override;
  std::vector<double> save() const override { return pack_fp8(blocks_); }
  Status load(std::span<const double> row) override { return unpack_fp8(row, blocks_); }

  // Lets all blocks run products in FP8 from now on. Histories start empty.
  void equip(VisitParts& visits);
  void release();
  // Turns counting of products on or off. Off while one of the program's steps is run again.
  void count(Fp8Count counting);
  // Ends a step whose losses were multiplied by `scale`, and adds the products' counts to
  // `evidence`. REQUIRES: an entry for each block.
  void end_step(float scale, std::span<BlockEvidence> evidence);
  // Ends a skipped step and drops its figures.
  void skip_step();

 private:
  void read();

  const PrecisionConfig& config_;
  const RankId rank_;
  Log log_;
  Fp8Blocks blocks_;
  Fp8Reading reading_;  // counts of an earlier step
};

}  // namespace cox::detail
