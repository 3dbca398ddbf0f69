// Fp8Watch is the actuator that lets the blocks of a rank run their products in FP8: it gives each
// block what the products keep from step to step (Fp8Block), reads what they counted once a step as
// evidence for the coordinator, and saves what delayed scaling remembers. Training thread only;
// does not communicate.
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

// Fp8Reading is what many blocks have counted on one device, on its way to the host in one copy.
// One thread.
class Fp8Reading {
 public:
  Fp8Reading() = default;
  // Takes over what waits in the blocks.
  explicit Fp8Reading(const Fp8Blocks& blocks);

  // Adds the counts to their blocks' once they have come. Returns whether nothing is on its way any
  // more. Never waits.
  bool finish();
  // Blocks until finish() would return true.
  void wait() const;

 private:
  struct Part {
    std::shared_ptr<Fp8Block> block;
    Fp8Waiting waiting;
  };
  std::vector<Part> parts_;
  HostCopy copy_;  // a row for each that waits
};

class Fp8Watch final : public Steering, public Saving {
 public:
  Fp8Watch(const PrecisionConfig& config, RankId rank, Log log)
      : config_(config), rank_(rank), log_(std::move(log)) {}

  void forget_run() override;
  const SavedRow* saved_row() const override;
  std::vector<double> save() const override { return pack_fp8(blocks_); }
  Status load(std::span<const double> row) override { return unpack_fp8(row, blocks_); }

  // Lets all blocks run products in FP8 from here on. Histories begin anew.
  void equip(VisitParts& visits);
  void release();
  // Whether products are counted; off while a step of the program's is run again.
  void count(Fp8Count counting);
  // Ends a step whose losses were multiplied by `scale`, and adds what products counted.
  // REQUIRES: an entry a block.
  void end_step(float scale, std::span<BlockEvidence> evidence);
  // Ends a step that was skipped: its figures are dropped.
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
