// MpiOperation: one collective operation in flight over MPI, moved on by advance().
//
// One MPI collective carries what it can. Reductions have an order of their own (ascending ranks),
// so MPI's are not used: small ones gather all ranks' bytes and combine them here; large ones send
// each rank its part of everybody's bytes, combine there, and pass the results round. The latter
// take several steps, which ranks reach at different times: their messages go point to point under
// the operation's number, because MPI matches collectives by the order of their calls alone.
// Includes mpi.h: for transport/mpi only. One thread.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
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
  std::size_t gather_limit_bytes = 0;
  std::size_t scratch_limit_bytes = 0;
};

class MpiOperation {
 public:
  // Starts it. REQUIRES: `call` was checked, and the object's last operation is over. `number`
  // counts the operations of the communicator and is the same on all ranks.
  Status begin(const MpiPlace& place, std::uint64_t number, const Call& call,
               const Buffers& buffers, const Reduction& reduction);
  // Moves it on; after done or an error it stays there.
  Result<Progress> advance();
  // Returns whether it needs advance() for more than its end.
  bool has_steps() const { return stage_ == Stage::exchange || stage_ == Stage::collect; }
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
  Buffers buffers_;
  Reduction reduction_;
  Stage stage_ = Stage::idle;
  Status failure_;
  Range chunk_;               // in flight now
  std::size_t elements_ = 0;  // of what chunks are taken from
  std::size_t chunk_elements_ = 0;
  std::size_t stride_ = 0;  // bytes between the ranks' parts in scratch
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
  void add(MpiOperation* operation) { operations_.push_back(operation); }
  void remove(MpiOperation* operation) { std::erase(operations_, operation); }
  // An operation keeps its outcome for its own test().
  void advance_all() {
    for (MpiOperation* operation : operations_) static_cast<void>(operation->advance());
  }

 private:
  std::vector<MpiOperation*> operations_;
};

}  // namespace cox::transport
