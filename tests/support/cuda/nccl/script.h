// Scripts the faults of a fake NCCL. The environment variable COX_FAKE_NCCL holds rules separated
// by semicolons, each of words separated by blanks:
//
//   rank=1 op=40 lost; every=7 slow_us=300; rank=0 init=hang; version=20400
//
// A rule selects by rank=R (of the communicator), group=G (the unique id's number, from 0, in the
// process that made it), op=K (the collective's number, from 0), from=K (and all later ones),
// every=N (each Nth). Selectors left out match everything. Effects:
//
//   slow_us=N     the collective begins that much later on this rank
//   lost          this rank never takes part, so no rank's collective completes
//   error=CODE    the rank's asynchronous state becomes this ncclResult_t, and it takes no part
//   init=fail     the start is refused at once, without a communicator
//   init=error    the start fails later
//   init=hang     the start never ends
//   abort=hang    the abort never ends
//   settle=N      polls after a call until it is in the stream (default 1)
//   version=V     of the library
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cox::test {

enum class InitFault { none, fail, error, hang };

struct FaultRuleOfNccl {
  std::int64_t rank = -1, group = -1, op = -1, from = -1, every = -1;
  std::int64_t slow_us = 0;
  std::int64_t error = 0;
  std::int64_t settle = -1;
  std::int64_t version = -1;
  bool lost = false;
  bool hangs_in_abort = false;
  InitFault init = InitFault::none;
};

class NcclScript {
 public:
  // Parses the rules. Unknown words end the program with a message.
  explicit NcclScript(std::string_view text);

  struct Fault {
    std::int64_t slow_us = 0;
    std::int64_t error = 0;
    bool lost = false;
  };
  Fault of_collective(std::int64_t group, std::int64_t rank, std::int64_t op) const;
  InitFault of_init(std::int64_t group, std::int64_t rank) const;
  bool hangs_in_abort(std::int64_t group, std::int64_t rank) const;
  std::int64_t polls_to_settle(std::int64_t group, std::int64_t rank) const;
  std::int64_t version(std::int64_t otherwise) const;

 private:
  std::vector<FaultRuleOfNccl> rules_;
};

}  // namespace cox::test
