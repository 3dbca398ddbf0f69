// EventFeed: what a stream of server-sent events says. It takes the parts of a page or document as
// they are at a moment, and gives a follower the bytes of those that changed since it was last
// served; followers who saw the same share them, so that many of them cost the memory of one. Knows
// no sockets and no clock. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cox::metrics {

// EventPart is one part as of a moment. The same place in the list is the same part.
struct EventPart {
  std::string event;  // its name for clients, without line breaks
  std::string text;
};

// What is the state of the job that the parts are about.
enum class EventsGoOn : std::uint8_t { yes, no };

class EventFeed {
 public:
  using Version = std::uint64_t;
  static constexpr Version kNothing = 0;  // that a follower has seen

  // Takes the parts of the newest moment. No part is ever taken away.
  void take(std::vector<EventPart> parts, EventsGoOn go_on);

  Version version() const { return version_; }
  bool is_over() const { return is_over_; }

  // Returns the events of all parts that changed after `seen`, in order, and the event `end` when
  // there will be no more; null when there is nothing to say.
  std::shared_ptr<const std::string> since(Version seen);

 private:
  struct Part {
    EventPart now;
    Version changed = kNothing;
  };

  std::vector<Part> parts_;
  Version version_ = kNothing;
  bool is_over_ = false;
  Version cached_since_ = kNothing;
  std::shared_ptr<const std::string> cached_;  // of version_; null: none yet
};

// Returns one event as the protocol has it: a line break in the text begins a line of its own.
std::string event_bytes(const EventPart& part);

}  // namespace cox::metrics
