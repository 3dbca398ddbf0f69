#include "metrics/http/event_feed.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace cox::metrics;

namespace {

std::string text(const std::shared_ptr<const std::string>& bytes) {
  return bytes ? *bytes : "nothing";
}

}  // namespace

TEST_SUITE("metrics.http") {
  TEST_CASE("an event is framed as the protocol has it, whatever breaks its text has") {
    CHECK(event_bytes({"part", "a"}) == "event: part\ndata: a\n\n");
    CHECK(event_bytes({"part", ""}) == "event: part\ndata: \n\n");
    CHECK(event_bytes({"part", "a\nb\r\nc\rd\n"}) ==
          "event: part\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \n\n");
    CHECK(event_bytes({"part", "x\n\nevent: forged"}) ==
          "event: part\ndata: x\ndata: \ndata: event: forged\n\n");
  }

  TEST_CASE("a follower gets everything first, then what has changed, and nothing twice") {
    EventFeed feed;
    CHECK(text(feed.since(EventFeed::kNothing)) == "nothing");
    feed.take({{"part", "a1"}, {"part", "b1"}}, EventsGoOn::yes);
    const auto first = feed.version();
    CHECK(text(feed.since(EventFeed::kNothing)) ==
          "event: part\ndata: a1\n\nevent: part\ndata: b1\n\n");
    CHECK(text(feed.since(first)) == "nothing");
    feed.take({{"part", "a1"}, {"part", "b1"}}, EventsGoOn::yes);
    CHECK(feed.version() == first);
    feed.take({{"part", "a1"}, {"part", "b2"}}, EventsGoOn::yes);
    CHECK(text(feed.since(first)) == "event: part\ndata: b2\n\n");
    feed.take({{"part", "a2"}, {"part", "b2"}}, EventsGoOn::yes);
    CHECK(text(feed.since(first)) == "event: part\ndata: a2\n\nevent: part\ndata: b2\n\n");
  }

  TEST_CASE("followers who saw the same share the bytes, also when they are many") {
    EventFeed feed;
    feed.take({{"part", "a"}}, EventsGoOn::yes);
    const auto one = feed.since(EventFeed::kNothing);
    CHECK(feed.since(EventFeed::kNothing).get() == one.get());
    feed.take({{"part", "b"}}, EventsGoOn::yes);
    CHECK(feed.since(EventFeed::kNothing).get() != one.get());
    CHECK(text(one) == "event: part\ndata: a\n\n");  // a slow client's send still holds it
  }

  TEST_CASE("the end is told once to everybody, with the last values") {
    EventFeed feed;
    feed.take({{"part", "a"}}, EventsGoOn::yes);
    const auto seen = feed.version();
    feed.take({{"part", "a"}}, EventsGoOn::no);
    CHECK(feed.is_over());
    CHECK(text(feed.since(seen)) == "event: end\ndata: \n\n");
    CHECK(text(feed.since(feed.version())) == "nothing");
    feed.take({{"part", "a"}}, EventsGoOn::no);
    CHECK(text(feed.since(seen)) == "event: end\ndata: \n\n");
  }
}
