#include "metrics/http/event_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cox::metrics {

void EventFeed::take(std::vector<EventPart> parts, EventsGoOn go_on) {
  const bool is_end = go_on == EventsGoOn::no && !is_over_;
  const Version next = version_ + 1;
  parts_.resize(std::max(parts_.size(), parts.size()));
  bool is_new = is_end;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts_[i];
    if (part.changed != kNothing && part.now.event == parts[i].event &&
        part.now.text == parts[i].text)
      continue;
    part = {std::move(parts[i]), next};
    is_new = true;
  }
  is_over_ = is_over_ || is_end;
  if (!is_new) return;
  version_ = next;
  cached_ = nullptr;
}

std::shared_ptr<const std::string> EventFeed::since(Version seen) {
  if (seen == version_) return nullptr;
  if (cached_ && cached_since_ == seen) return cached_;
  std::string bytes;
  for (const Part& part : parts_) {
    if (part.changed > seen) bytes += event_bytes(part.now);
  }
  if (is_over_) bytes += event_bytes({"end", ""});
  cached_since_ = seen;
  cached_ = std::make_shared<const std::string>(std::move(bytes));
  return cached_;
}

std::string event_bytes(const EventPart& part) {
  std::string out = fmt::format("event: {}\ndata: ", part.event);
  for (std::size_t i = 0; i < part.text.size(); ++i) {
    const char c = part.text[i];
    const bool is_pair = c == '\r' && i + 1 < part.text.size() && part.text[i + 1] == '\n';
    if (is_pair) continue;
    if (c == '\n' || c == '\r')
      out += "\ndata: ";
    else
      out += c;
  }
  return out + "\n\n";
}

}  // namespace cox::metrics
