// DeathWatch: names the first rank of a job that died. A launcher that notices a death kills the
// other ranks within milliseconds, and may name the wrong process. The first rank therefore forks a
// small process, "coxswain-watch", outside the launcher's process group. The process observes the
// ends of the ranks in order and reports the first one before the end of its loop. Ranks of one
// node only: nothing orders the ends of two nodes. Called by training threads. See also
// docs/endings.md.
//
//   ranks -- MarkBoard, inherited --> coxswain-watch -- one line --> standard error
//   ranks -- Lifeline, a socket ----^               \-- ending.json --> run directory
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "coordinator/core/log.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/status.h"
#include "coordinator/runtime/node_marks.h"
#include "coordinator/transport/shared/lifeline.h"

namespace cox::runtime {

// One rank's end, as observed.
struct RankEnd {
  RankMark mark;                       // the last mark
  bool is_explained = false;           // the rank itself explained its end
  std::optional<std::int32_t> code;    // as of waitpid(); unknown if another process waited first
  std::uint64_t most_cpu_seconds = 0;  // the hard limit of CPU seconds; 0 = none
};

enum class EndKind : std::uint8_t {
  in_order,   // the rank's loop had ended
  explained,  // the rank's log says why; later ends are a consequence
  death,
};
EndKind kind_of(const RankEnd& end);

// Parses a process' exit code from the line of /proc/PID/stat; returns nothing while the process
// lives. Pure.
std::optional<std::int32_t> parse_exit_code(std::string_view stat_line);

// Writes "rank 2 on <host> (process 71) ended before its loop did: killed by signal 9 (...), in
// backward of step 212, for 0.3 s", cut to the size of `to`, and returns the text. Safe in a forked
// process.
std::string_view write_death(const RankEnd& end, std::string_view host, std::int32_t process,
                             std::span<char> to);

struct DeathWatchSetup {
  std::string host = "an-unknown-host";
  std::int32_t world_size = 1;
  std::filesystem::path run_directory;  // empty = none
  std::filesystem::path saves;          // named in the line if a save exists; empty = none
  LogLevel least = LogLevel::info;      // quiet: only ending.json
  int lines_to = 2;                     // a descriptor
};

// A lifeline ends before the launcher can learn of the death and kill another rank (lifeline.h).
// epoll keeps the order of ends, so the order is certain however late the process looks.
//
// The process holds of the job only standard error, the board and the run directory: no lock, no
// memory, no other descriptor. The process leaves when all ranks have ended, or when the DeathWatch
// is destroyed, which means an end in order. A rank that explains its own end
// (MarkWriter::explain_end) is not reported, nor is a rank that says goodbye (~Lifeline). If a rank
// calls MPI_Abort, MPI names that rank and the launcher kills all ranks at once; the line then
// names one of the killed.
class DeathWatch {
 public:
  // The most ranks of a node.
  static constexpr std::size_t kMostRanks = 1024;

  // Waits for the lifelines of all ranks of the node, at most ten seconds for each, and forks.
  // Returns unavailable if the system has no pidfd, allows no further process, or a rank does not
  // connect from a process of its own. REQUIRES: all ranks of the node have signed their marks;
  // `marks` is in shared memory.
  static Result<std::unique_ptr<DeathWatch>> start(transport::LifelinePort port,
                                                   const NodeMarks& marks,
                                                   const DeathWatchSetup& setup);
  // Ends the process, because the job ends in order. Waits for at most a second.
  ~DeathWatch();
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  // Ends the process now, because the caller itself reports why the job ends. Any thread.
  void end() const;
  std::int32_t process() const { return process_; }

 private:
  DeathWatch(int over, std::int32_t process) : over_(over), process_(process) {}

  int over_;  // an eventfd
  std::int32_t process_;
};

// Returns the death that ended the last job of a run directory, from ending.json; empty if there
// was none. The bytes are untrusted: data_loss if the file is invalid.
Result<std::string> read_ending(const std::filesystem::path& run_directory);
// Removes the file of read_ending().
void forget_ending(const std::filesystem::path& run_directory);

}  // namespace cox::runtime
