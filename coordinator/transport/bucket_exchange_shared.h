// SharedExchange: buckets in the shared segment of the node. Ranks claim chunks of what all of the
// node have started, add them up in ascending ranks and write the sum to every rank's bucket; with
// several nodes the sum goes to the leader's bucket, the leaders add up theirs in place, and chunks
// of the result are claimed again to be copied. Internal to bucket_exchange*; one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/transport/bucket_exchange_board.h"
#include "coordinator/transport/bucket_exchange_rounds.h"

namespace cox::transport {

// What create() has prepared. Rank 0 of the node is its leader.
struct SharedParts {
  RankId rank{};                     // of the job
  std::int32_t seat = 0;             // rank within the node
  std::vector<RankId> node_ranks;    // of the job, ascending
  std::vector<RankId> leader_ranks;  // one per node, ascending
  SharedSegment segment;
  std::unique_ptr<Communicator> leaders;  // on leaders of several nodes
  std::unique_ptr<DepartureWatch> watch;  // there too
};

class SharedExchange final : public RoundExchange {
 public:
  // Of the segment: the board first, then the arenas of the node's ranks.
  static std::size_t bytes_needed(const BucketLayout& layout, std::int32_t ranks);

  SharedExchange(BucketLayout layout, const WaitPolicy& wait, std::string note, SharedParts parts);
  ~SharedExchange() override;

  Bytes buffer(std::size_t bucket) override;
  SharedSegment memory() const override { return parts_.segment; }
  const char* path() const override;

 private:
  Status give(std::size_t bucket) override;
  Result<Moved> move() override;
  void rest() override;
  void tell(const std::string& why) override;
  std::string holds_up(std::size_t bucket) const override;

  std::string missing_part(std::size_t bucket) const;
  Result<Moved> move_bucket(std::size_t bucket, int& claims);
  bool add(std::size_t bucket);
  bool spread(std::size_t bucket);
  Status cross(std::size_t bucket);
  Status hear();
  bool ready() const;
  BucketStage stage(std::size_t bucket) const;
  bool several_nodes() const { return parts_.leader_ranks.size() > 1; }
  bool leads() const { return parts_.seat == 0; }
  bool awaits_messages() const { return to_cross_ > crossed_; }
  std::byte* at(std::int32_t seat, std::size_t bucket) const;

  SharedParts parts_;
  BucketBoard board_;
  std::byte* arenas_;
  std::size_t arena_bytes_;
  // The leader's, of this round: sums handed to the other leaders, and come back.
  std::size_t to_cross_ = 0;
  std::size_t crossed_ = 0;
  std::vector<Request> requests_;
};

}  // namespace cox::transport
