#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "coordinator/transport/exchange/bucket_board.h"
#include "coordinator/transport/exchange/round_exchange.h"

namespace cox::transport {
namespace {

// Buckets in the shared segment of the node: the board first, then the arenas of the node's ranks.
// Ranks claim chunks of what all of the node have started, add them up in ascending ranks and write
// the sum to every rank's bucket. With several nodes the sum goes to the leader's bucket, the
// leaders add up theirs in place, and chunks of the result are claimed again to be copied.
class SharedExchange final : public RoundExchange {
 public:
  SharedExchange(BucketLayout layout, const WaitPolicy& wait, SharedParts parts);
  ~SharedExchange() override;

  Bytes buffer(std::size_t bucket) override;
  SharedSegment memory() const override { return parts_.segment; }
  const char* path() const override;

 private:
  Status give(std::size_t bucket) override;
  Result<Moved> move() override;
  void back_off() override;
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

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBlockBytes = std::size_t{8} << 10;  // of two ranks: in the first-level cache
constexpr int kClaimsAMove = 4;                            // at most 1 MiB: some 100 us
constexpr std::chrono::microseconds kLongestSleep{300};    // how late a pump may be
constexpr std::chrono::microseconds kShortestSleep{1};

std::size_t board_bytes(std::int32_t ranks, std::size_t buckets) {
  return (BucketBoard::bytes_needed(ranks, buckets) + kPage - 1) / kPage * kPage;
}

struct Range {
  std::size_t first;
  std::size_t bytes;
};

Range chunk_of(const BucketPlace& place, std::uint64_t chunk) {
  const std::size_t first = chunk * place.chunk_bytes;
  return {first, std::min(place.chunk_bytes, place.bytes - first)};
}

SharedExchange::SharedExchange(BucketLayout layout, const WaitPolicy& wait, SharedParts parts)
    : RoundExchange(parts.rank, layout, wait, std::string()),
      parts_(std::move(parts)),
      board_(parts_.segment.bytes(), static_cast<std::int32_t>(parts_.node_ranks.size()),
             buckets()),
      arenas_(parts_.segment.bytes().data() +
              board_bytes(static_cast<std::int32_t>(parts_.node_ranks.size()), buckets())),
      arena_bytes_(layout.arena_bytes),
      requests_(buckets()) {}

// MPI may still write to a sum that is on its way: its memory is then left to the process's end.
SharedExchange::~SharedExchange() {
  if (parts_.watch != nullptr) parts_.watch->hear_out(last_word());
  if (awaits_messages() && parts_.leaders->kind() == std::string_view("mpi")) {
    static_cast<void>(std::make_unique<SharedSegment>(parts_.segment).release());
  }
}

std::byte* SharedExchange::at(std::int32_t seat, std::size_t bucket) const {
  return arenas_ + static_cast<std::size_t>(seat) * arena_bytes_ + place(bucket).offset;
}

Bytes SharedExchange::buffer(std::size_t bucket) {
  return {at(parts_.seat, bucket), place(bucket).bytes};
}

const char* SharedExchange::path() const {
  return several_nodes() ? "shared memory and mpi" : "shared memory";
}

BucketStage SharedExchange::stage(std::size_t bucket) const {
  return board_.stage(bucket, turn(), place(bucket).chunks);
}

Status SharedExchange::give(std::size_t bucket) {
  if (bucket == 0) to_cross_ = crossed_ = 0;
  Status heard = hear();
  if (!heard.ok()) return heard;
  board_.arrive(parts_.seat, bucket, turn());
  return ok_status();
}

Result<RoundExchange::Moved> SharedExchange::move() {
  // Before looking at the buckets: a round that was complete when a rank left stays a good one.
  Status heard = hear();
  Moved moved = Moved::nothing;
  int claims = kClaimsAMove;
  for (std::size_t b = first_open(); b < started(); ++b) {
    if (is_done(b)) continue;
    if (stage(b) == BucketStage::arriving) break;  // and so are all after it
    Result<Moved> one = move_bucket(b, claims);
    if (!one.ok()) return one;
    if (*one == Moved::something) moved = Moved::something;
  }
  if (moved == Moved::something && first_open() == buckets()) return moved;  // without others too
  if (!heard.ok()) return heard;
  return moved;
}

Result<RoundExchange::Moved> SharedExchange::move_bucket(std::size_t bucket, int& claims) {
  Moved moved = Moved::nothing;
  for (;;) {
    const BucketStage now = stage(bucket);
    bool more = false;
    if (now == BucketStage::adding || now == BucketStage::spreading) {
      more = claims > 0 && (now == BucketStage::adding ? add(bucket) : spread(bucket));
      if (more) --claims;
    } else if (now == BucketStage::spread || (now == BucketStage::added && !several_nodes())) {
      finish(bucket);
      return Moved::something;
    } else if (now == BucketStage::added && leads()) {
      const std::size_t before = to_cross_ + crossed_;
      Status crossing = cross(bucket);
      if (!crossing.ok()) return crossing;
      more = to_cross_ + crossed_ != before;
    }
    if (!more) return moved;
    moved = Moved::something;
  }
}

// The leader is seat 0, so a sum is built in its bucket whether or not the others get it now.
bool SharedExchange::add(std::size_t bucket) {
  const BucketPlace& it = place(bucket);
  const std::optional<std::uint64_t> chunk = board_.claim_add(bucket, turn(), it.chunks);
  if (!chunk) return false;
  const Clock::time_point since = Clock::now();
  const Range range = chunk_of(it, *chunk);
  const std::size_t element = it.reduction.element_bytes;
  const std::size_t block = std::max<std::size_t>(1, kBlockBytes / element) * element;
  const std::size_t ranks = parts_.node_ranks.size();
  for (std::size_t done = 0; done < range.bytes; done += block) {
    const std::size_t bytes = std::min(block, range.bytes - done);
    std::byte* sum = at(0, bucket) + range.first + done;
    for (std::size_t r = 1; r < ranks; ++r) {
      it.reduction.apply(sum, sum + r * arena_bytes_, bytes / element);
    }
    for (std::size_t r = 1; r < ranks && !several_nodes(); ++r) {
      std::memcpy(sum + r * arena_bytes_, sum, bytes);
    }
  }
  worked(bucket, since);
  board_.chunk_added(bucket, turn(), it.chunks);
  return true;
}

bool SharedExchange::spread(std::size_t bucket) {
  const BucketPlace& it = place(bucket);
  const std::optional<std::uint64_t> chunk = board_.claim_spread(bucket, turn(), it.chunks);
  if (!chunk) return false;
  const Clock::time_point since = Clock::now();
  const Range range = chunk_of(it, *chunk);
  for (std::size_t done = 0; done < range.bytes; done += kBlockBytes) {
    const std::size_t bytes = std::min(kBlockBytes, range.bytes - done);
    const std::byte* sum = at(0, bucket) + range.first + done;
    for (std::size_t r = 1; r < parts_.node_ranks.size(); ++r) {
      std::memcpy(const_cast<std::byte*>(sum) + r * arena_bytes_, sum, bytes);
    }
  }
  worked(bucket, since);
  board_.chunk_spread(bucket, turn(), it.chunks);
  return true;
}

// In ascending buckets, as all leaders must; each call takes one step.
Status SharedExchange::cross(std::size_t bucket) {
  if (bucket == to_cross_) {
    Result<Request> request =
        parts_.leaders->start_all_reduce(buffer(bucket), place(bucket).reduction);
    if (!request.ok()) return request.status();
    requests_[bucket] = *request;
    ++to_cross_;
    return to_cross_ == buckets() ? parts_.watch->close_round() : ok_status();
  }
  if (bucket != crossed_) return ok_status();
  Result<Progress> progress = parts_.leaders->test(requests_[bucket]);
  if (!progress.ok()) return progress.status();
  if (*progress == Progress::pending) return ok_status();
  ++crossed_;
  board_.crossed(bucket, turn());
  return ok_status();
}

Status SharedExchange::hear() {
  if (parts_.watch != nullptr) {
    if (board_.has_departure()) {
      Status told = parts_.watch->depart(board_.departure());
      if (!told.ok()) return told;
    }
    Result<Departure> heard = parts_.watch->poll();
    if (!heard.ok()) return heard.status();
    if (heard->somebody()) board_.depart(*heard);
  }
  return board_.has_departure() ? board_.departure().status() : ok_status();
}

bool SharedExchange::ready() const {
  if (board_.has_departure()) return true;
  for (std::size_t b = first_open(); b < started(); ++b) {
    if (is_done(b)) continue;
    const BucketStage now = stage(b);
    if (now == BucketStage::arriving) return false;
    if (now == BucketStage::adding || now == BucketStage::spreading || now == BucketStage::spread) {
      return true;
    }
    if (now == BucketStage::added && (!several_nodes() || (leads() && b == to_cross_))) return true;
  }
  return false;
}

void SharedExchange::back_off() {
  std::chrono::nanoseconds limit = kLongestSleep;
  // Messages wake nobody.
  if (parts_.watch != nullptr)
    limit =
        std::clamp<std::chrono::nanoseconds>(wait_policy().sleep, kShortestSleep, kLongestSleep);
  board_.wait(limit, [this] { return ready(); });
}

void SharedExchange::tell(const std::string& why) {
  const Departure departure = Departure::of(rank(), why);
  board_.depart(departure);
  // Nobody is left to hear of a failure to tell.
  if (parts_.watch != nullptr) static_cast<void>(parts_.watch->depart(departure));
}

std::string SharedExchange::holds_up(std::size_t bucket) const {
  return missing_part(bucket) + " (" + board_.progress(bucket, turn(), place(bucket).chunks) + ")";
}

std::string SharedExchange::missing_part(std::size_t bucket) const {
  std::string missing;
  for (std::size_t s = 0; s < parts_.node_ranks.size(); ++s) {
    if (board_.has_started(static_cast<std::int32_t>(s), bucket, turn())) continue;
    missing +=
        (missing.empty() ? "rank " : ", rank ") + std::to_string(parts_.node_ranks[s].value());
  }
  if (!missing.empty()) return missing + " of this node did not start it";
  if (!several_nodes()) return "a rank of this node stopped while it was adding a part of it";
  std::string leaders;
  for (const RankId leader : parts_.leader_ranks) {
    if (leader == parts_.node_ranks[0]) continue;
    leaders += (leaders.empty() ? "rank " : " or rank ") + std::to_string(leader.value());
  }
  return "all of this node gave theirs; missing is the part of the node of " + leaders;
}

}  // namespace

std::size_t shared_exchange_bytes(const BucketLayout& layout, std::int32_t ranks) {
  return board_bytes(ranks, layout.places.size()) +
         static_cast<std::size_t>(ranks) * layout.arena_bytes;
}

void format_shared_exchange(Bytes memory, const BucketLayout& layout, std::int32_t ranks) {
  BucketBoard::format(memory, ranks, layout.places.size());
}

std::unique_ptr<BucketExchange> make_shared_exchange(BucketLayout layout, const WaitPolicy& wait,
                                                     SharedParts parts) {
  return std::make_unique<SharedExchange>(std::move(layout), wait, std::move(parts));
}

}  // namespace cox::transport
