// SamplePlan decides which samples each rank trains on. A seeded order of the data set is cut into
// global batches, and each batch is cut into one slice a rank. The results are computed from (seed,
// cursor, shares). So ranks do not communicate, the cursor is the only stored number, and memory
// does not grow with the data set.
//
//   cox::SampleBatch batch = plan.batch_at(cursor);                    // the same on every rank
//   auto counts = cox::SamplePlan::assign(batch.count, weights);       // samples of each rank
//   cox::SampleSlice mine = cox::SamplePlan::slice(*counts, rank);     // this rank's part
//   auto samples = plan.indices(batch.cursor, mine.first, mine.count);
//   cursor = batch.next;
//
// The cursor is a position in the endless sequence epoch 0, epoch 1, ...: epoch = cursor / size. A
// cursor does not depend on ranks, shares or batch size. So a job may resume from a cursor at
// another world size, and every sample is still used exactly once an epoch. Value type, pure
// functions, std only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/status.h"

namespace cox {

// Tail selects the use of an epoch's last samples if they do not fill a global batch.
enum class Tail {
  keep_partial,  // the samples form a smaller batch
  drop,          // left out of this epoch; the next epoch's order leaves out others
};

struct SamplePlanOptions {
  std::int64_t size = 0;          // samples in the data set: 1 to 2^48
  std::int64_t global_batch = 1;  // samples a step over all ranks: 1 to 2^31
  std::uint64_t seed = 0;
  Tail tail = Tail::keep_partial;
};

struct SampleBatch {
  std::uint64_t cursor = 0;  // start of the batch; the next epoch's start if a tail was dropped
  std::int64_t count = 0;    // samples; never reaches into the next epoch
  std::uint64_t next = 0;    // the cursor after the batch
};

struct SampleSlice {
  std::int64_t first = 0;  // from the start of the batch
  std::int64_t count = 0;
};

class SamplePlan {
 public:
  // Returns invalid_argument for a number out of range, and for Tail::drop with a data set smaller
  // than one global batch.
  static Result<SamplePlan> create(SamplePlanOptions options);

  const SamplePlanOptions& options() const { return options_; }
  std::uint64_t epoch_of(std::uint64_t cursor) const { return cursor / size(); }

  // Returns the batch that begins at `cursor`, of global_batch or of `samples` (>= 1) samples. A
  // batch ends with its epoch. With Tail::drop, a batch that would be partial begins at the next
  // epoch instead.
  SampleBatch batch_at(std::uint64_t cursor) const {
    return batch_at(cursor, options_.global_batch);
  }
  SampleBatch batch_at(std::uint64_t cursor, std::int64_t samples) const;

  // Returns the sample at a cursor, in [0, size). The samples of an epoch are a permutation of the
  // data set.
  std::int64_t sample_at(std::uint64_t cursor) const;

  // Returns the samples at cursor + first, cursor + first + 1, ..., `count` of them. REQUIRES:
  // first, count >= 0.
  std::vector<std::int64_t> indices(std::uint64_t cursor, std::int64_t first,
                                    std::int64_t count) const;

  // Splits `count` samples in proportion to `weights`, one weight a rank. Each rank gets its exact
  // share rounded down. The rest goes one by one to the largest remainders, the lower rank first. A
  // rank of weight 0 gets 0. Returns invalid_argument if all weights are 0, there are none, or
  // count is not in [0, 2^31].
  static Result<std::vector<std::int64_t>> assign(std::int64_t count,
                                                  std::span<const std::uint32_t> weights);

  // Returns the slice of `rank` if rank r has counts[r] samples and the slices follow one another
  // in rank order. REQUIRES: rank < counts.size().
  static SampleSlice slice(std::span<const std::int64_t> counts, std::size_t rank);

 private:
  explicit SamplePlan(SamplePlanOptions options) : options_(options) {}
  std::uint64_t size() const { return static_cast<std::uint64_t>(options_.size); }

  SamplePlanOptions options_;
};

}  // namespace cox
