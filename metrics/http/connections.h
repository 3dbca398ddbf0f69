// Who is connected to the HTTP server (http_server.cc): its connections, and the status pages that
// are open. Knows no sockets and no clock: the server tells what happens and when.
#pragma once

#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

namespace cox::metrics {

// OpenPages counts the status pages that are open in browsers. Such a page follows the events of
// the server, or fetches itself again after some seconds (status_page.h), so one that was fetched
// lately is expected back. The server tells it of every fetch and of every follower; when the job
// ends, rank 0 waits here until all of them have seen the end. Any thread may call it.
class OpenPages {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostCounted = 64;

  // `period`: a page that was not fetched for so long is closed.
  explicit OpenPages(Clock::duration period) : period_(period) {}

  void fetched(Clock::time_point now);

  // Who follows events from now on. A page is the one that was fetched last, and is not expected
  // back.
  enum class Follower : std::uint8_t { page, program };
  void begins_to_follow(Follower who);
  void stops_to_follow();

  // Returns how many fetches of the last period there were, at most kMostCounted.
  std::size_t count(Clock::time_point now) const;

  // Blocks until as many pages were fetched after `now` as are open at `now` and nobody follows any
  // more, at most for a period. Returns at once where none is open. REQUIRES: fetches after `now`
  // get a page that stays, and followers are told the end.
  void wait_for_last_look(Clock::time_point now);

 private:
  std::size_t fetched_after(Clock::time_point time) const;

  const Clock::duration period_;
  mutable std::mutex mutex_;
  std::condition_variable fetched_;
  std::deque<Clock::time_point> times_;  // ascending, the newest kMostCounted
  std::size_t following_ = 0;
};

struct ConnectionLimits {
  std::size_t total = 512;
  std::size_t per_peer = 64;  // from one address; this machine's own are not counted
  std::size_t answers = 256;  // made or being sent at the same time: each holds a page in memory
};

// Limits for a process that may open so many files: at most half of them, because training needs
// files and sockets too.
ConnectionLimits connection_limits(std::uint64_t descriptors);

// ConnectionTable: which connections a server holds, and which one must go when a new one comes and
// there is no room, so that a probe always gets in, however many clients are idle or slow. The
// server closes what it names. One thread at a time.
class ConnectionTable {
 public:
  using Id = std::uint64_t;  // rises with every connection, never used twice
  // What a connection is at. Those that leave go first, those that are answered last; who follows
  // events comes back by himself.
  enum class Phase : std::uint8_t { leaving, asking, following, answering };

  explicit ConnectionTable(ConnectionLimits limits) : limits_(limits) {}

  // A connection came in from an IPv4 address (host byte order). `evicted` is no longer in the
  // table: the oldest of its peer, or of all, in the first phase that has one.
  struct Admission {
    Id id = 0;
    std::optional<Id> evicted;
  };
  Admission admit(std::uint32_t address);

  // Returns the oldest connection that is answered when there are too many; it is no longer in the
  // table.
  std::optional<Id> set_phase(Id id, Phase phase);

  // Takes out the connection that is to go when the process has no more descriptors.
  std::optional<Id> evict();

  void remove(Id id);  // nothing when it is not there
  std::size_t size() const { return open_.size(); }

 private:
  struct Entry {
    std::uint32_t address = 0;
    Phase phase = Phase::asking;
  };
  // The first one of a set goes first.
  struct Place {
    Phase phase = Phase::asking;
    Id id = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  using Places = std::set<Place>;

  Id take_out(const Place& place);

  ConnectionLimits limits_;
  Id last_ = 0;
  std::unordered_map<Id, Entry> open_;
  Places places_;                                      // of all
  std::unordered_map<std::uint32_t, Places> of_peer_;  // by address
  std::size_t answering_ = 0;
};

}  // namespace cox::metrics
