#include "sdk/src/session/waiting_time.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

TEST_SUITE("waiting time") {
  TEST_CASE("what the kernel says of a thread's run queue is read, and odd texts are refused") {
    CHECK(queued_ns_in("12 3456 7\n") == 3456u);
    for (const char* odd :
         {"", "12", "12 ", "12 x 3", "12 -5 3", "12 345", "1 99999999999999999999 2"})
      CHECK_FALSE(queued_ns_in(odd));
    CHECK_FALSE(RunQueue::of_this_thread("/nonexistent"));
    if (auto queue = RunQueue::of_this_thread()) {
      const Seconds before = queue->queued();
      CHECK(queue->queued() >= before);
    }
  }
}
