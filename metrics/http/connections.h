// Tracks the clients of the HTTP server (http_server.cc): connections and open status pages. Uses
// no sockets and no clock; the server reports events with their times.
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

// OpenPages counts the status pages that are open in browsers. Such a page follows the server's
// events, or fetches itself again after some seconds (status_page.h), so a page fetched lately will
// return. The server reports every fetch and every follower. When the job ends, rank 0 waits until
// all open pages have seen the end. Any thread may call it.
class OpenPages {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostCounted = 64;

  // `period`: the time without a fetch after which a page counts as closed.
  explicit OpenPages(Clock::duration period) : period_(period) {}

  void fetched(Clock::time_point now);

  // Counts a new follower of events. A follower of kind `page` is a page that was fetched before,
  // so one fetched page less is expected to return.
  enum class Follower : std::uint8_t { page, program };
  void begins_to_follow(Follower who);
  void stops_to_follow();

  // Returns the number of fetches in the last period, at most kMostCounted.
  std::size_t count(Clock::time_point now) const;

  // Blocks until as many pages were fetched after `now` as are open at `now`, and no follower is
  // left; at most for a period. Returns at once if no page is open. REQUIRES: fetches after `now`
  // get a page that does not refresh, and followers are told the end.
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
  std::size_t per_peer = 64;  // from one address; no limit for this machine's own
  std::size_t answers = 256;  // in progress at the same time; each holds a page in memory
};

// Returns limits for a process with so many file descriptors: at most half of them, because
// training needs files and sockets, too.
ConnectionLimits connection_limits(std::uint64_t descriptors);

// ConnectionTable decides which connection to close when a new one finds no room. A probe always
// gets in, however many clients are idle or slow. The server closes the connections that the table
// names. One thread at a time.
class ConnectionTable {
 public:
  using Id = std::uint64_t;  // rises with every connection; never reused
  // The state of a connection, in the order of eviction: leaving connections go first, answering
  // ones last. A follower of events reconnects by itself.
  enum class Phase : std::uint8_t { leaving, asking, following, answering };

  explicit ConnectionTable(ConnectionLimits limits) : limits_(limits) {}

  // The result for a new connection. `evicted` is no longer in the table: the oldest connection of
  // the peer, or of all, in the first phase with a connection.
  struct Admission {
    Id id = 0;
    std::optional<Id> evicted;
  };
  Admission admit(std::uint32_t address);

  // Sets the phase. If too many connections are being answered, removes and returns the oldest of
  // them.
  std::optional<Id> set_phase(Id id, Phase phase);

  // Removes and returns the connection to close when the process has no more descriptors.
  std::optional<Id> evict();

  void remove(Id id);  // does nothing if the table lacks `id`
  std::size_t size() const { return open_.size(); }

 private:
  struct Entry {
    std::uint32_t address = 0;
    Phase phase = Phase::asking;
  };
  // Places sort by eviction order.
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
  Places places_;                                      // all connections
  std::unordered_map<std::uint32_t, Places> of_peer_;  // by address
  std::size_t answering_ = 0;
};

}  // namespace cox::metrics
