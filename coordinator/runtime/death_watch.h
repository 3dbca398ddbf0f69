// DeathWatch: tells which rank of a job died, although nobody is left to tell. A launcher that sees
// one rank die kills the others within milliseconds, and the process that it names need not be the
// dead one. So the first rank forks a small process, "coxswain-watch", that is no member of the
// launcher's process group, sees the ranks end in the order in which they do, and tells the first
// end that came before its loop had ended:
//
//   ranks -- MarkBoard, inherited --> coxswain-watch -- one line --> standard error
//   ranks -- Lifeline, a socket ----^               \-- ending.json --> run directory
//
// A lifeline ends before the launcher can hear of the death and kill another rank (lifeline.h), and
// epoll keeps the order in which they end, so the order is certain however late the process looks.
// Ranks of one node only: nothing orders ends of two nodes.
//
// The process holds nothing of the job but standard error, the board and the run directory: no
// lock, no memory, no other descriptor. It leaves when all ranks have ended, or when its DeathWatch
// is destroyed, which says that they end in order. A rank that tells by itself why it ends
// (MarkWriter::explain_end) is not told again, nor is one that says goodbye (~Lifeline). Where a
// rank calls MPI_Abort, MPI names it, and the launcher kills all ranks at once: the line then names
// one of them, as killed. Training threads.
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

// One rank's end, as it was seen.
struct RankEnd {
  RankMark mark;                       // its last one
  bool is_explained = false;           // by the rank itself
  std::optional<std::int32_t> code;    // as waitpid() has it; unknown where somebody took it before
  std::uint64_t most_cpu_seconds = 0;  // the hard limit on them; 0 = none
};

enum class EndKind : std::uint8_t {
  in_order,   // its loop had ended
  explained,  // its own log says why, and ends that follow are its consequence
  death,
};
EndKind kind_of(const RankEnd& end);

// Reads how a process ended from the line of /proc/PID/stat; nothing while it lives. Pure.
std::optional<std::int32_t> parse_exit_code(std::string_view stat_line);

// Writes "rank 2 on <host> (process 71) ended before its loop did: killed by signal 9 (...), in
// backward of step 212, for 0.3 s", cut to what fits, and returns it. Calls nothing that a forked
// process must not.
std::string_view write_death(const RankEnd& end, std::string_view host, std::int32_t process,
                             std::span<char> to);

struct DeathWatchSetup {
  std::string host = "an-unknown-host";
  std::int32_t world_size = 1;
  std::filesystem::path run_directory;  // empty = none
  std::filesystem::path saves;          // named in the line where a save is there; empty = none
  LogLevel least = LogLevel::info;      // quiet: nothing but ending.json
  int lines_to = 2;                     // a descriptor
};

class DeathWatch {
 public:
  // The most ranks of a node.
  static constexpr std::size_t kMostRanks = 1024;

  // Waits for the lifelines of all ranks of the node, at most ten seconds for each, and forks.
  // REQUIRES: all of them have signed their marks, and `marks` is in memory that processes share.
  // unavailable where the system has no pidfd, allows no further process, or a rank does not
  // connect from a process of its own.
  static Result<std::unique_ptr<DeathWatch>> start(transport::LifelinePort port,
                                                   const NodeMarks& marks,
                                                   const DeathWatchSetup& setup);
  // The job ends in order: tells the process to leave, and waits for it for at most a second.
  ~DeathWatch();
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  // Tells the process to leave now, because this one says itself why the job ends. Any thread.
  void end() const;
  std::int32_t process() const { return process_; }

 private:
  DeathWatch(int over, std::int32_t process) : over_(over), process_(process) {}

  int over_;  // an eventfd
  std::int32_t process_;
};

// The death that ended the last job of this run directory, as its ending.json tells it; empty where
// there was none. Bytes from outside: data_loss for what is no such file.
Result<std::string> read_ending(const std::filesystem::path& run_directory);
// Removes what read_ending() reads.
void forget_ending(const std::filesystem::path& run_directory);

}  // namespace cox::runtime
