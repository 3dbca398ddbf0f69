#include "coordinator/io/work_thread.h"

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/support/no_threads.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::io::WorkThread;

TEST_SUITE("io.work_thread") {
  TEST_CASE("work is done beside the caller, and its outcome is told once") {
    WorkThread thread;
    CHECK_FALSE(thread.is_busy());
    CHECK_FALSE(thread.take_outcome());
    std::promise<void> gate;
    auto opened = gate.get_future().share();
    thread.begin([opened] {
      opened.wait();
      return data_loss("a full disk");
    });
    CHECK(thread.is_busy());
    CHECK_FALSE(thread.take_outcome());
    gate.set_value();
    const auto outcome = thread.finish();
    REQUIRE(outcome);
    CHECK(outcome->message() == "a full disk");
    CHECK_FALSE(thread.finish());
    thread.begin([] { return ok_status(); });
    REQUIRE(thread.finish());
  }

  TEST_CASE("the thread that ends waits for its work") {
    bool is_done = false;
    {
      WorkThread thread;
      thread.begin([&is_done] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        is_done = true;
        return ok_status();
      });
    }
    CHECK(is_done);
  }

  TEST_CASE("whoever waits leaves the outcome to be taken") {
    WorkThread thread;
    thread.wait();
    thread.begin([] { return data_loss("a full disk"); });
    thread.wait();
    CHECK_FALSE(thread.is_busy());
    const auto outcome = thread.take_outcome();
    REQUIRE(outcome);
    CHECK(outcome->message() == "a full disk");
  }

  TEST_CASE("work that throws has failed, and ends no program") {
    WorkThread thread;
    thread.begin([]() -> Status { throw std::runtime_error("surprise"); });
    const auto outcome = thread.finish();
    REQUIRE(outcome);
    CHECK(outcome->message().find("surprise") != std::string::npos);
  }

  TEST_CASE("where no thread can be started the work is done at once") {
    const cox::test::NoThreads none;
    WorkThread thread;
    thread.begin([] { return ok_status(); });
    CHECK_FALSE(thread.is_busy());
    REQUIRE(thread.take_outcome());
  }
}
