// The one machine behind the stand-in runtime: devices, streams, events, device and pinned memory.
// cudart.cc wraps the machine in CUDA's functions, stand_in.cc in those of stand_in.h.
//
// Flow: submit() enters work into the program order of a stream and joins the host's clock; note()
// compares the work's accesses; enqueue() runs the work in its turn (usually at once). Completion
// creates no order: only waits of a stream or the host do.
//
// Thread rule: use members under `Machine::Lock`, unless a comment says otherwise.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/cuda/memory.h"
#include "tests/support/cuda/order.h"
#include "tests/support/cuda/stand_in.h"

namespace cox::standin {

// Settings from environment variables (tests/support/cuda/README.md).
struct Script {
  int devices = 1;                          // after CUDA_VISIBLE_DEVICES
  bool driver = true;                       // false: as on a machine without a driver
  std::size_t capacity_bytes = 2ull << 30;  // for each device
  int capability = 90;                      // 10 * major + minor
  int unready_queries = 1;                  // times that a complete event first answers "not ready"
  bool go_on = false;  // after a host access to device memory, which still counts as a failure
  std::string report_folder;  // for one file a process; empty: none
};
Script script_from_environment();

struct Stream {
  Actor actor = 0;
  int device = 0;
  bool blocking = false;  // ordered with the default stream by itself
  Clock clock;            // ordered before the stream's next work
  std::deque<std::function<bool()>>
      queue;                              // each item works and returns true when its turn can end
  std::uint64_t submitted = 0, done = 0;  // counts of `queue`
  int unready_queries = 0;                // "not ready" answers still to give
};

// The meaning of an event since it was last recorded.
struct Recording {
  Stream* stream = nullptr;
  std::uint64_t until = 0;  // done when stream->done reaches it
  Clock clock;
  Actor actor = 0;
  std::uint64_t tick = 0;
  double at_ms = 0;
};

struct Event {
  bool timing = true;
  std::shared_ptr<Recording> last;  // nullptr: never recorded
  int unready_queries = 0;
};

class Machine {
 public:
  static Machine& get();

  class Lock {
   public:
    Lock();
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    std::unique_lock<std::mutex>& held() { return lock_; }

   private:
    std::unique_lock<std::mutex> lock_;
  };

  const Script& script() const { return script_; }

  // Streams.
  Stream* stream(void* handle, int current_device);
  Stream* new_stream(int device, bool blocking);
  void submit(Stream& stream);
  void enqueue(Stream& stream, std::function<bool()> work);
  void advance();                          // runs all work whose turn has come
  void drain(Stream& stream, Lock& lock);  // sleeps until nothing is pending; creates no order
  void sleep_until(const std::function<bool()>& ready, Lock& lock);
  bool host_knows(Actor actor, std::uint64_t tick) const { return host_.of(actor) >= tick; }
  void host_joins(const Clock& clock);
  void host_joins_device(int device, Lock& lock);

  // Events.
  void record(Event& event, Stream& stream);
  bool complete(const Event& event) const;
  void drain(const Event& event, Lock& lock);
  void wait_for(Stream& stream, const Event& event);

  // Memory. device_of() returns -1 if no device holds the address.
  void* device_allocate(int device, std::size_t bytes);
  bool device_free(void* begin, Lock& lock);
  void* pinned_allocate(std::size_t bytes);
  bool pinned_free(void* begin, Lock& lock);
  int device_of(const void* address) const;   // needs no lock
  bool is_pinned(const void* address) const;  // needs no lock
  void* shadow(const void* address) const;    // needs no lock
  bool is_allocated(const void* address, std::size_t bytes) const;
  std::size_t used_bytes(int device) const { return devices_[device]->used_bytes(); }

  void note(const void* address, std::size_t bytes, bool writes, Stream& stream, const char* what);

  // Handles a host access to closed memory. Returns true if the program may continue: a counted
  // race with pinned memory. Locks by itself.
  bool fault(const void* address, bool writes);

  // Writes the report at the end of the process. Returns true if there were races or host accesses.
  bool finish();

  std::uint64_t synchronisations() const;

  std::uint64_t take_races();  // races since the last call

  cox_standin_counters counters{};

 private:
  Machine();
  void report(const std::string& line) const;
  void write_line(const std::string& line) const;
  void report_race(const Race& race);
  void close_to_host(const void* address, const Access& access, bool writes);
  void open_to_host();
  std::string place(std::uintptr_t address) const;

  struct Use {
    Access access;
    bool writes = false;
  };

  Script script_;
  std::uint64_t taken_races_ = 0;
  std::mutex mutex_;
  std::condition_variable progress_;
  std::vector<std::unique_ptr<Stream>>
      streams_;  // the devices' default streams first; index = actor
  Clock host_;
  std::vector<std::unique_ptr<TwofoldMemory>> devices_;
  TwofoldMemory pinned_;
  std::map<char*, std::vector<Use>>
      in_flight_;  // per pinned block: uses with which the host has not synchronised
  AccessMap accesses_;
};

}  // namespace cox::standin
