#include <thread>

#include "metrics/http/connections.h"

#include <doctest/doctest.h>

using cox::metrics::OpenPages;
using std::chrono::hours;
using std::chrono::seconds;

TEST_SUITE("metrics") {
  TEST_CASE("a page is open for a period after it was fetched") {
    const OpenPages::Clock::time_point start{hours(1)};
    OpenPages pages(seconds(6));
    CHECK(pages.count(start) == 0);
    pages.fetched(start);
    pages.fetched(start + seconds(2));
    CHECK(pages.count(start + seconds(3)) == 2);
    CHECK(pages.count(start + seconds(7)) == 1);
    CHECK(pages.count(start + seconds(8)) == 0);
    for (std::size_t i = 0; i < 3 * OpenPages::kMostCounted; ++i) pages.fetched(start + hours(1));
    CHECK(pages.count(start + hours(1)) == OpenPages::kMostCounted);
  }

  TEST_CASE("the last look is waited for where a page is open, and nothing where none is") {
    const auto now = OpenPages::Clock::now();
    OpenPages pages(hours(1));  // a wait for the whole period would fail the test
    pages.wait_for_last_look(now);
    pages.fetched(now - hours(2));
    pages.wait_for_last_look(now);  // the page closed long ago

    pages.fetched(now - seconds(2));
    pages.fetched(now - seconds(1));
    std::thread browsers([&] {
      pages.fetched(now + seconds(1));
      pages.fetched(now + seconds(2));
    });
    pages.wait_for_last_look(now);
    browsers.join();
    CHECK(pages.count(now + seconds(3)) == 4);
  }

  TEST_CASE("a browser that was closed meanwhile is waited for no longer than a period") {
    const auto now = OpenPages::Clock::now();
    OpenPages pages(seconds(0) + std::chrono::milliseconds(20));
    pages.fetched(now);
    pages.wait_for_last_look(now + std::chrono::milliseconds(1));
    CHECK(OpenPages::Clock::now() >= now);
  }

  TEST_CASE(
      "a page that follows events is waited for until it has the last ones, not for a fetch") {
    const auto now = OpenPages::Clock::now();
    OpenPages pages(hours(1));  // a wait for the whole period would fail the test
    pages.fetched(now - seconds(1));
    pages.begins_to_follow(OpenPages::Follower::page);
    CHECK(pages.count(now) == 0);
    std::thread server([&] { pages.stops_to_follow(); });
    pages.wait_for_last_look(now);
    server.join();
  }

  TEST_CASE("a program that follows events does not stand for a page") {
    const auto now = OpenPages::Clock::now();
    OpenPages pages(seconds(6));
    pages.fetched(now);
    pages.begins_to_follow(OpenPages::Follower::program);
    CHECK(pages.count(now) == 1);
  }
}
