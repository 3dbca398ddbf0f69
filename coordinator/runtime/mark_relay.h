// MarkReceiver and MarkSender: bring the marks of other nodes' ranks to the coordinator. Training
// threads alone call MPI, and a stalled one calls nothing. So the leader of each other node has a
// thread that reads the node's board once a second. While a mark has not moved for long, the thread
// sends all marks as datagrams. The coordinator answers with the ranks that delay others, and the
// thread puts these ranks on the node's board. If datagrams are lost, or a network passes none, the
// node's ranks are `silent`, with no other effect.
//
//   ranks -- MarkBoard --> MarkSender == datagrams ==> MarkReceiver --> StallWatch (rank 0)
//   ranks <-- MarkBoard -- MarkSender <== datagrams == MarkReceiver <-- Stall
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "coordinator/core/log.h"
#include "coordinator/core/stall.h"
#include "coordinator/runtime/node_marks.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/datagrams.h"

namespace cox::runtime {

using RelaySecret = std::array<std::uint8_t, 16>;

// The address of rank 0's receiver, broadcast to all ranks.
struct RelayAddress {
  RelaySecret secret{};
  std::uint32_t port = 0;  // 0 = there is no receiver
  std::uint32_t count = 0;
  std::array<std::uint32_t, 8> ips{};
};

inline constexpr std::size_t kMarksOfALetter = 24;  // so that a letter fits any network's packet
inline constexpr std::size_t kLetterBytes = 24 + kMarksOfALetter * 40;

// Returns a letter: a fixed layout with a version and the job's secret, which ranks learn over MPI.
// REQUIRES: at most kMarksOfALetter marks.
std::vector<std::byte> write_letter(std::span<const RankMark> marks, const RelaySecret& secret);
// Returns nothing for bytes that are no letter of this job: wrong size, version or secret, a rank
// beyond the world, or invalid times.
std::optional<std::vector<RankMark>> read_letter(std::span<const std::byte> bytes,
                                                 const RelaySecret& secret, std::size_t world_size);

// MarkReceiver is rank 0's end. Used by the coordinator's thread.
class MarkReceiver {
 public:
  using Clock = transport::MarkClock;

  static Result<std::unique_ptr<MarkReceiver>> open(std::size_t world_size);
  const RelayAddress& address() const { return address_; }

  // Receives the letters that have come. Drops all if the last call was more than two seconds ago,
  // because the letters may be old.
  void collect(Clock::time_point now);
  // Puts the marks of other nodes' ranks into `marks`, which has one per rank, at their present
  // age. Ranks without recent news keep their entry.
  void fill(std::vector<RankMark>& marks, Clock::time_point now) const;
  // Sends the ranks that delay others to all nodes that have written lately.
  void answer(const Stall& stall, Clock::time_point now) const;

 private:
  struct Heard {
    RankMark mark;
    Clock::time_point after{};  // the letter came after that time ...
    Clock::time_point at{};     // ... and was received at that time
  };
  MarkReceiver(transport::Datagrams socket, std::size_t world_size);

  transport::Datagrams socket_;
  std::size_t world_size_;
  RelayAddress address_;
  std::map<std::int32_t, Heard> heard_;  // by rank
  struct Sender {
    transport::DatagramAddress address;
    Clock::time_point at{};
  };
  std::vector<Sender> senders_;  // one a node, at most kMostSenders
  std::optional<Clock::time_point> last_collect_;
};

// MarkSender is the end of another node: a thread of the node's leader.
class MarkSender {
 public:
  // `marks` must outlive the sender.
  static Result<std::unique_ptr<MarkSender>> start(const NodeMarks& marks, const RelayAddress& post,
                                                   std::size_t world_size);
  ~MarkSender();
  MarkSender(const MarkSender&) = delete;
  MarkSender& operator=(const MarkSender&) = delete;

 private:
  MarkSender(const NodeMarks& marks, const RelayAddress& post, std::size_t world_size,
             transport::Datagrams socket);
  void run();
  void send_marks();
  void take_answers();

  const NodeMarks& marks_;
  const RelayAddress post_;
  const std::size_t world_size_;
  transport::Datagrams socket_;
  std::optional<transport::DatagramAddress> answers_from_;  // the address that works
  std::mutex mutex_;                                        // guards is_stopping_
  std::condition_variable stopping_;
  bool is_stopping_ = false;
  std::thread thread_;
};

// Rank 0 has the receiver (`post`); the leaders of other nodes have a sender (`courier`). Both are
// null with one node, or if sockets cannot be had; the log has the reason.
struct MarkRelay {
  std::unique_ptr<MarkReceiver> post;
  std::unique_ptr<MarkSender> courier;

  // Rank 0: returns the known marks of all `ranks` ranks, by rank.
  std::vector<RankMark> marks_of_all(const NodeMarks& marks, std::size_t ranks,
                                     transport::MarkClock::time_point now) const;
};
// Collective; blocks by polling. `marks` must outlive the result.
Result<MarkRelay> set_up_relay(transport::Communicator& world, const NodeGroup& nodes,
                               const NodeMarks& marks, const Log& log);

}  // namespace cox::runtime
