// EventFeed encodes a stream of server-sent events. The feed receives the parts of a page or
// document as of a moment, and gives a follower the bytes of the parts that changed since the
// follower's last version. Followers with the same version share the bytes, so many followers cost
// the memory of one. Uses no sockets and no clock. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cox::metrics {

// EventPart is one part as of a moment. A place in the list identifies the part.
struct EventPart {
  std::string event;  // the event's name for clients, without line breaks
  std::string text;
};

// Whether the job behind the parts goes on.
enum class EventsGoOn : std::uint8_t { yes, no };

class EventFeed {
 public:
  using Version = std::uint64_t;
  static constexpr Version kNothing = 0;  // the version of a follower without any part

  // Replaces the parts by those of the newest moment. The list never gets shorter.
  void take(std::vector<EventPart> parts, EventsGoOn go_on);

  Version version() const { return version_; }
  bool is_over() const { return is_over_; }

  // Returns the events of all parts that changed after `seen`, in order, then the event `end` if
  // the feed is over. Returns null if there is nothing to send.
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
  std::shared_ptr<const std::string> cached_;  // events up to version_; null: none yet
};

// Encodes one event. Each line of the text becomes a data line of the protocol.
std::string event_bytes(const EventPart& part);

}  // namespace cox::metrics
