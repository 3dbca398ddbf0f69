#include "coordinator/core/status.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

TEST_SUITE("core") {
  TEST_CASE("a status says its code and its message, and ok says ok") {
    CHECK(cox::ok_status().text() == "ok");
    CHECK(cox::data_loss("mask: expected 32 bytes, found 7").text() ==
          "data_loss: mask: expected 32 bytes, found 7");
  }

  TEST_CASE("every code has a name of its own") {
    std::vector<std::string> names;
    for (int code = 0; code <= static_cast<int>(cox::StatusCode::internal); ++code) {
      const std::string name(cox::to_string(static_cast<cox::StatusCode>(code)));
      CHECK(name != "unknown");
      for (const std::string& other : names) CHECK(name != other);
      names.push_back(name);
    }
  }

  TEST_CASE("context is put before the message of an error and leaves ok alone") {
    const cox::Status error = cox::not_found("no such key").with_context("run.cfg:3");
    CHECK(error == cox::not_found("run.cfg:3: no such key"));
    CHECK(cox::ok_status().with_context("run.cfg:3") == cox::ok_status());
  }

  TEST_CASE("a result holds a value or the reason why there is none") {
    const cox::Result<int> value = 7;
    REQUIRE(value.ok());
    CHECK(*value == 7);
    CHECK(value.status().ok());

    const cox::Result<int> none = cox::unavailable("rank 3 does not answer");
    CHECK_FALSE(none.ok());
    CHECK(none.status() == cox::unavailable("rank 3 does not answer"));
  }

  TEST_CASE("a value that can only move leaves its result by move") {
    cox::Result<std::vector<int>> made = std::vector<int>{1, 2, 3};
    const std::vector<int> taken = std::move(made).value();
    CHECK(taken == std::vector<int>{1, 2, 3});
  }
}
