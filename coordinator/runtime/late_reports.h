// LateReports: reports whose round was judged without them. The next report of the rank, where one
// follows, takes them in, so that nothing it counted or asked for is lost; each is still told as
// stale. Between the inbox and StepSignals. Thread rule: the coordinator's thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/transport/shared/signal_board.h"

namespace cox::runtime {

class LateReports {
 public:
  explicit LateReports(std::int32_t world_size);

  // Keeps what in `collected` is older than `round`, the one to judge, and merges into each rank's
  // report of `round` what was kept of that rank. A report counts once, however often it comes.
  void fold(RoundId round, const JobFacts& job, transport::CollectedSignals& collected);

 private:
  bool keep(const RankSignal& late);  // false: it counted before
  void add_to(RankSignal& report);
  void fold_evidence(std::vector<BlockEvidence>& evidence);

  std::vector<RoundId> next_;  // per rank, the first round that none of its reports has covered
  std::map<std::int32_t, RankSignal> kept_;
  std::vector<BlockEvidence> evidence_;  // of turns that brought late reports only
};

}  // namespace cox::runtime
