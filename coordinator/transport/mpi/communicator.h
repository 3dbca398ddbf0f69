// MpiCommunicator: the Communicator over MPI. Owns its MPI communicator and a table of operations.
// Includes mpi.h: for transport/mpi only. One thread.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "coordinator/transport/mpi/operation.h"
#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/request_table.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {

class MpiCommunicator final : public Communicator {
 public:
  // What a communicator hands on to those derived from it. `node` is the same number on ranks that
  // share memory, and on those only.
  struct Heritage {
    NodeId node{};
    MpiOptions options;
    std::shared_ptr<MpiProgress> progress;
  };
  // Takes `comm` over and makes it return errors. Collective and waiting.
  static Result<std::unique_ptr<Communicator>> adopt(MPI_Comm comm, std::string name,
                                                     const Heritage& heritage);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  RankId rank() const override { return RankId(place_.rank); }
  std::int32_t size() const override { return place_.size; }
  std::int32_t ranks_on_node() const override { return ranks_on_node_; }
  const char* kind() const override { return "mpi"; }

  Result<Progress> test(Request& request) override;

  Result<std::unique_ptr<Communicator>> duplicate() override;
  Result<std::unique_ptr<Communicator>> split_by_node() override;

 private:
  MpiCommunicator(MPI_Comm comm, std::string name, const Heritage& heritage);

  Result<Request> start(const Call& call, const Buffers& buffers,
                        const Reduction& reduction) override;
  Result<std::unique_ptr<Communicator>> part(std::int32_t color) override;
  Result<SharedSegment> share(std::size_t bytes) override;
  Status count_node_ranks();
  WaitPolicy start_up_wait(const char* what) const;
  std::string child_name();

  const Heritage heritage_;
  MpiPlace place_;
  std::int32_t ranks_on_node_ = 1;
  std::uint64_t operations_ = 0;
  std::int32_t children_ = 0;
  RequestTable<MpiOperation> requests_;
};

// A duplicate of `comm`, waited for by polling. `name` is for messages.
Result<MPI_Comm> mpi_duplicate(MPI_Comm comm, const std::string& name, const WaitPolicy& policy);
// Lets all ranks of `comm` come together by polling, so that a blocking call after it is short.
Status mpi_meet(MPI_Comm comm, const std::string& name, const WaitPolicy& policy);

}  // namespace cox::transport
