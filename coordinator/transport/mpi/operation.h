// MpiOperation: one collective operation in flight over MPI, moved on by advance().
//
// One MPI collective carries what it can. Reductions have an order of their own (ascending ranks),
// so MPI's are not used: small ones gather all ranks' bytes and combine them here; large ones send
// each rank its part of everybody's bytes, combine there, and pass the results round. The latter
// take several steps, which ranks reach at different times: their messages go point to point under
// the operation's number, because MPI matches collectives by the order of their calls alone.
//
// Each collective carries the stamp of its call (call_book.h) in front of its bytes, or beside them
// where those are many, and fails where the stamps of ranks differ. Reductions of several steps
// carry none: buckets have communicators of their own.
//
// Includes mpi.h: for transport/mpi only. One thread.
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
// `context` (which communicator, which peer) and MPI's own text.
Status mpi_status(int code, const char* call, const std::string& context);

// MpiPlace is a communicator seen from one rank. Constant.
struct MpiPlace {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<RankId> members;  // in the job
  std::size_t gather_limit_bytes = 0;
  std::size_t scratch_limit_bytes = 0;
};

class MpiOperation {
 public:
  // Starts it. REQUIRES: `call` was checked, and the object's last operation is over. `number`
  // counts the operations of the communicator and is the same on all ranks.
  Status begin(const MpiPlace& place, std::uint64_t number, const Call& call,
               const CallStamp& stamp, const Buffers& buffers, const Reduction& reduction);
  // Moves it on; after done or an error it stays there.
  Result<Progress> advance();
  // Returns whether it needs advance() for more than its end.
  bool has_steps() const { return stage_ == Stage::exchange || stage_ == Stage::collect; }
  // Has its test() look whether other ranks are in other calls.
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
  std::size_t elements_ = 0;  // of what chunks are taken from
  std::size_t chunk_elements_ = 0;
  std::size_t stride_ = 0;  // bytes between the ranks' parts in scratch
  // A single collective keeps this rank's stamp and bytes, those of all ranks, and whether the
  // bytes are there or go from buffer to buffer.
  std::byte* own_ = nullptr;
  std::byte* parts_ = nullptr;
  bool carries_bytes_ = false;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> peers_;  // of requests_
  std::unique_ptr<std::byte[], FreeBytes> scratch_;
  std::size_t scratch_bytes_ = 0;
};

// MpiProgress has the operations of several steps that are in flight on any communicator of one
// MpiRuntime. MPI moves all its collectives on, whichever of them is tested, and ours must do the
// same: a rank that waits on one communicator takes the steps that others need on another.
// Otherwise two ranks could wait for each other for ever. One thread.
class MpiProgress {
 public:
  std::shared_ptr<CallBook> calls;  // of all of them

  void add(MpiOperation* operation) { operations_.push_back(operation); }
  void remove(MpiOperation* operation) { std::erase(operations_, operation); }
  // An operation keeps its outcome for its own test().
  void advance_all() {
    for (MpiOperation* operation : operations_) static_cast<void>(operation->advance());
  }

 private:
  std::vector<MpiOperation*> operations_;
};

// MpiCallPost carries CallNotes between ranks as messages of a communicator of their own. A note is
// small enough for MPI to send it whether or not it is received.
class MpiCallPost final : public CallPost {
 public:
  // `comm` has the job's ranks and is used for nothing else. It is left to MPI's end, as notes are
  // that nobody receives.
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
  std::vector<Sent*> sent_;  // never freed while MPI may read them
};

}  // namespace cox::transport
