// MpiOperation: one collective operation in flight over MPI, advanced by advance(). The mpi
// transport keeps one per slot of its request table. Includes mpi.h: for transport/mpi only. One
// thread.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/call_book.h"
#include "coordinator/transport/communicator.h"

namespace cox::transport {

// Returns an MPI return code as Status: ok for MPI_SUCCESS, else unavailable with the call's name,
// `context` (the communicator and the peer) and MPI's own text.
Status mpi_status(int code, const char* call, const std::string& context);

// MpiPlace is a communicator as one rank sees it. Constant.
struct MpiPlace {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<RankId> members;  // in the job
  std::size_t gather_limit_bytes = 0;
  std::size_t scratch_limit_bytes = 0;
};

// An operation uses one MPI collective if possible. Reductions need ascending rank order, so MPI's
// own are not used. A small reduction gathers all ranks' bytes and combines them locally. A large
// one sends each rank its part of all ranks' bytes, combines the part there, and distributes the
// results. Ranks reach the steps of a large reduction at different times, and MPI matches
// collectives by call order alone. So the messages of the steps go point to point under the
// operation's number.
//
// Each collective carries the stamp of its call (call_book.h), in front of the bytes or beside a
// large buffer, and fails if the ranks' stamps differ. Reductions of several steps carry no stamp:
// buckets have communicators of their own.
class MpiOperation {
 public:
  // Starts an operation. REQUIRES: `call` was checked, and the object's last operation is over.
  // `number` counts the operations of the communicator and is the same on all ranks.
  Status begin(const MpiPlace& place, std::uint64_t number, const Call& call,
               const CallStamp& stamp, const Buffers& buffers, const Reduction& reduction);
  // Advances the operation. The outcome stays after done or an error.
  Result<Progress> advance();
  // Returns whether the operation has several steps, so that it needs advance() before its end.
  bool has_steps() const { return stage_ == Stage::exchange || stage_ == Stage::collect; }
  // Makes test() check whether other ranks are in other calls.
  void watch(CallBook::Clock::time_point since) { watched_since_ = since; }
  std::optional<CallBook::Clock::time_point> watched_since() const { return watched_since_; }
  // Leaks the buffers that MPI may still write to, so that they live until the process ends.
  void abandon();

 private:
  enum class Stage : std::uint8_t { idle, single, exchange, collect, failed };
  struct Range {  // elements
    std::size_t first = 0;
    std::size_t count = 0;
  };
  struct FreeBytes {
    void operator()(std::byte* p) const;
  };

  Status begin_single();
  Status begin_collective(std::byte* send, std::byte* receive, std::size_t size);
  std::byte* part(int rank) const { return parts_ + static_cast<std::size_t>(rank) * stride_; }
  Status finish_single();
  Status check_stamps() const;
  void unpack();
  bool has_all_parts() const;
  Status begin_exchange();
  Status begin_collect();
  Status after_stage();
  Status next_chunk();
  bool by_gather() const;
  void plan_chunks();
  bool combines_here() const;
  bool sends_to(int peer) const;
  Range part_of(int rank) const;
  int tag() const { return tag_ + (stage_ == Stage::collect ? 1 : 0); }
  MPI_Request& request_with(int peer);
  Status receive(std::byte* into, std::size_t bytes, int peer);
  Status send(const std::byte* from, std::size_t bytes, int peer);
  std::byte* scratch(std::size_t bytes);
  void combine_gathered();
  void combine_exchanged();
  Result<bool> stage_is_over();
  Status failed_peer() const;
  Status checked(int code, const char* call, int peer) const;
  std::string context(int peer) const;

  const MpiPlace* place_ = nullptr;
  int tag_ = 0;
  Call call_;
  CallStamp stamp_;
  std::optional<CallBook::Clock::time_point> watched_since_;
  Buffers buffers_;
  Reduction reduction_;
  Stage stage_ = Stage::idle;
  Status failure_;
  Range chunk_;               // in flight now
  std::size_t elements_ = 0;  // in the buffer that chunks are cut from
  std::size_t chunk_elements_ = 0;
  std::size_t stride_ = 0;  // bytes between the ranks' parts in scratch
  // State of a single collective: this rank's stamp and bytes, those of all ranks, and whether the
  // bytes travel behind the stamps or directly between the buffers.
  std::byte* own_ = nullptr;
  std::byte* parts_ = nullptr;
  bool carries_bytes_ = false;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> peers_;  // the peers of requests_
  std::unique_ptr<std::byte[], FreeBytes> scratch_;
  std::size_t scratch_bytes_ = 0;
};

// MpiProgress holds the operations of several steps in flight on all communicators of one
// MpiRuntime. A test of any MPI collective advances all of them; operations of several steps must
// do the same. A rank that waits on one communicator thus takes the steps that other ranks need on
// another. Otherwise two ranks could wait for each other for ever. One thread.
class MpiProgress {
 public:
  std::shared_ptr<CallBook> calls;  // shared by all the communicators

  void add(MpiOperation* operation) { operations_.push_back(operation); }
  void remove(MpiOperation* operation) { std::erase(operations_, operation); }
  // Advances every operation. An operation keeps its outcome for its own test().
  void advance_all() {
    for (MpiOperation* operation : operations_) static_cast<void>(operation->advance());
  }

 private:
  std::vector<MpiOperation*> operations_;
};

// MpiCallPost carries CallNotes between ranks as messages on a communicator of their own. Notes are
// small, so MPI sends a note whether or not a receiver asks for it.
class MpiCallPost final : public CallPost {
 public:
  // `comm` has the job's ranks and serves no other purpose. The communicator and unreceived notes
  // are left to MPI's end.
  explicit MpiCallPost(MPI_Comm comm);
  RankId rank() const override { return RankId(rank_); }
  std::int32_t size() const override { return size_; }
  void send_to_others(const CallNote& note) override;
  std::optional<CallNote> receive() override;

 private:
  struct Sent {
    CallNote note;
    std::vector<MPI_Request> requests;
  };
  void forget_arrived();

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<Sent*> sent_;  // never freed while MPI may read the notes
};

}  // namespace cox::transport
