#include "metrics/json_writer.h"

#include <limits>

#include <doctest/doctest.h>

using namespace cox::metrics;

TEST_SUITE("metrics") {
  TEST_CASE("objects and arrays nest with commas where they belong") {
    JsonWriter json;
    json.begin_object().field("a", 1).key("b").begin_array().value(1.5).value("x").null();
    json.begin_object().end_object().end_array().field("c", true).end_object();
    CHECK(json.take() == R"({"a":1,"b":[1.5,"x",null,{}],"c":true})");
  }

  TEST_CASE("text is escaped") {
    CHECK(json_string("a\"b\\c\n\t\x01\x7f") == R"("a\"b\\c\n\t\u0001\u007f")");
    CHECK(json_string("µ") == "\"µ\"");
  }

  TEST_CASE("numbers read back, and those that are not finite are null") {
    CHECK(json_number(0.1) == "0.1");
    CHECK(json_number(0.1f) == "0.1");
    CHECK(json_number(-3.0) == "-3");
    CHECK(json_number(1e300) == "1e+300");
    CHECK(json_number(std::numeric_limits<double>::quiet_NaN()) == "null");
    CHECK(json_number(-std::numeric_limits<double>::infinity()) == "null");
  }
}
