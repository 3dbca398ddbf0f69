// MarkReceiver and MarkSender: how the marks of a node's ranks get to the coordinator where a job
// has several nodes. Training threads alone call MPI, and the one that stands still calls nothing;
// so the leader of each other node has a thread that looks at the node's board once a second and,
// while a mark there has not moved for long, sends all of them as datagrams. The coordinator
// answers with the ranks that keep others waiting, which the courier puts on the node's board:
//
//   ranks -- MarkBoard --> MarkSender == datagrams ==> MarkReceiver --> StallWatch (rank 0)
//   ranks <-- MarkBoard -- MarkSender <== datagrams == MarkReceiver <-- Stall
//
// Datagrams may be lost, and a network may let none through: the ranks of that node are then
// `silent`, and nothing else changes. A letter is a fixed layout with a version and a secret of the
// job, told over MPI; anything else is dropped.
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

// Where rank 0 takes letters; broadcast to all ranks.
struct RelayAddress {
  RelaySecret secret{};
  std::uint32_t port = 0;  // 0 = there is no post
  std::uint32_t count = 0;
  std::array<std::uint32_t, 8> ips{};
};

inline constexpr std::size_t kMarksOfALetter = 24;  // so that a letter fits any network's packet
inline constexpr std::size_t kLetterBytes = 24 + kMarksOfALetter * 40;

// One letter as bytes. REQUIRES: at most kMarksOfALetter marks.
std::vector<std::byte> write_letter(std::span<const RankMark> marks, const RelaySecret& secret);
// Nothing for bytes that are no letter of this job: wrong size, version or secret, a rank beyond
// the world, times that are no times.
std::optional<std::vector<RankMark>> read_letter(std::span<const std::byte> bytes,
                                                 const RelaySecret& secret, std::size_t world_size);

// Rank 0's end. The coordinator's thread.
class MarkReceiver {
 public:
  using Clock = transport::MarkClock;

  static Result<std::unique_ptr<MarkReceiver>> open(std::size_t world_size);
  const RelayAddress& address() const { return address_; }

  // Takes the letters that have come. Those that lay there for longer than two calls are apart say
  // nothing of now, and are dropped.
  void collect(Clock::time_point now);
  // Puts the marks that came from other nodes into `marks`, one a rank, at the age that they have
  // by now; those not heard for long stay as they are.
  void fill(std::vector<RankMark>& marks, Clock::time_point now) const;
  // Tells all nodes that have written lately whom the others wait for.
  void answer(const Stall& stall, Clock::time_point now) const;

 private:
  struct Heard {
    RankMark mark;
    Clock::time_point after{};  // it came after that,
    Clock::time_point at{};     // and was taken then
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
  std::vector<Sender> senders_;  // a node each, at most kMostSenders
  std::optional<Clock::time_point> last_collect_;
};

// The end of another node: a thread of its leader.
class MarkSender {
 public:
  // `marks` must outlive the courier.
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

// Rank 0 has a post, the leaders of other nodes have a courier; both null where there is one node,
// or where sockets cannot be had, which the log says.
struct MarkRelay {
  std::unique_ptr<MarkReceiver> post;
  std::unique_ptr<MarkSender> courier;

  // Rank 0: the marks of all `ranks` ranks, as far as they are known; by rank.
  std::vector<RankMark> marks_of_all(const NodeMarks& marks, std::size_t ranks,
                                     transport::MarkClock::time_point now) const;
};
// Collective; waits by polling. `marks` must outlive the result.
Result<MarkRelay> set_up_relay(transport::Communicator& world, const NodeGroup& nodes,
                               const NodeMarks& marks, const Log& log);

}  // namespace cox::runtime
