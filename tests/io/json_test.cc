#include "coordinator/io/json.h"

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "coordinator/core/text.h"

#include <doctest/doctest.h>

namespace {

using namespace cox::io;

// Collects the scalars of a document.
class Scalars : public JsonEvents {
 public:
  cox::Status begin(JsonKind) override { return cox::ok_status(); }
  cox::Status name(std::string_view) override { return cox::ok_status(); }
  cox::Status value(const JsonScalar& scalar) override {
    found.push_back(scalar);
    found.back().string = {};
    return complaint;
  }
  cox::Status end() override { return cox::ok_status(); }

  std::vector<JsonScalar> found;
  cox::Status complaint;
};

std::string with_tail(std::string head, char tail) {
  return head.append(10000, tail);
}

std::string nested(std::size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

TEST_SUITE("io.json") {
  TEST_CASE("a JSON document becomes the tree it describes") {
    const auto json = parse_json(
        " {\"a\": [1, -2.5e1, true, null], \"b\": {\"c\": \"x\\u00e9\\ud83d\\ude00\\n\"}} ");
    REQUIRE(json.ok());
    const Json* list = json->find("a");
    REQUIRE(list);
    REQUIRE(list->items.size() == 4);
    CHECK(list->items[0].number == 1);
    CHECK(list->items[1].number == -25);
    CHECK(list->items[2].boolean);
    CHECK(list->items[3].kind == JsonKind::null);
    CHECK(json->find("b")->find("c")->string == "x\xc3\xa9\xf0\x9f\x98\x80\n");
    CHECK(json->find("none") == nullptr);
  }

  TEST_CASE("what is not strict JSON is refused with the place of the mistake") {
    const std::vector<std::string> bad = {
        "",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{a:1}",
        "{\"a\":1,\"a\":2}",
        "[1] 2",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "+1",
        "0x10",
        "NaN",
        "Infinity",
        "1e999",
        "tru",
        "'a'",
        "\"a",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        std::string("\"a\nb\""),
        "\"\xff\"",
        "\"\xc0\x80\"",
        "\"\xed\xa0\x80\"",
        "\"\xf4\x90\x80\x80\"",
        "\"\xe2\x82\"",
        "[1 2]",
        "[,1]",
        "// c\n1",
        std::string("1\0", 2),
        std::string("\0", 1),
        "\xef\xbb\xbf{}",
        with_tail("{\"a\":1", 'x'),
        with_tail("\"", 'x'),
        with_tail("", '9') + "e9999",
        nested(65),
    };
    for (const std::string& text : bad) {
      CAPTURE(text);
      const auto json = parse_json(text);
      REQUIRE_FALSE(json.ok());
      CHECK(json.status().code() == cox::StatusCode::data_loss);
      CHECK(json.status().message().find("byte ") != std::string::npos);
      CHECK(json.status().message().size() < 300);
      CHECK(cox::is_utf8(json.status().message()));
    }
    CHECK(parse_json(nested(64)).ok());
    CHECK(parse_json("123", 2).status().code() == cox::StatusCode::resource_exhausted);
    std::string many = "[0";
    for (int i = 0; i < (1 << 20); ++i) many += ",0";
    CHECK(parse_json(many + "]").status().message().find("values") != std::string::npos);
  }

  TEST_CASE("whole numbers keep all 64 bits and anything else is no whole number") {
    const auto read = [](const char* text) {
      Scalars scalars;
      const cox::Status status = read_json(text, scalars);
      const bool is_whole = status.ok() && scalars.found.front().whole.has_value();
      return is_whole ? std::to_string(*scalars.found.front().whole) : std::string("error");
    };
    CHECK(read("0") == "0");
    CHECK(read("18446744073709551615") == "18446744073709551615");
    for (const char* text :
         {"18446744073709551616", "99999999999999999999", "-1", "1.0", "1e3", "01", ""}) {
      CAPTURE(text);
      CHECK(read(text) == "error");
    }
  }

  TEST_CASE("a reader's complaint ends the reading and gets the place") {
    Scalars scalars;
    scalars.complaint = cox::invalid_argument("expected no number");
    const cox::Status status = read_json("[ 1, 2]", scalars);
    CHECK(status == cox::invalid_argument("JSON, byte 4: expected no number"));
    CHECK(scalars.found.size() == 1);
  }

  TEST_CASE("objects and arrays nest with commas where they belong") {
    JsonWriter json;
    json.begin_object().field("a", 1).key("b").begin_array().value(1.5).value("x").null();
    json.begin_object().end_object().end_array().field("c", true).end_object();
    CHECK(json.take() == R"({"a":1,"b":[1.5,"x",null,{}],"c":true})");
  }

  TEST_CASE("lines break where they are asked to") {
    JsonWriter json;
    json.begin_object().new_line(2).field("a", 1).new_line(2).key("b").begin_array().end_array();
    json.new_line().end_object();
    CHECK(json.take() == "{\n  \"a\":1,\n  \"b\":[]\n}");
  }

  TEST_CASE("written text reads back as itself, without bytes that are not UTF-8") {
    CHECK(json_string("a\"b\\c\n\t\x01\x7f") == R"("a\"b\\c\n\t\u0001\u007f")");
    CHECK(json_string("\xff") == "\"\xEF\xBF\xBD\"");
    const std::string text = "a\"b\\c\n\t\x01 \xc3\xa9";
    const auto json = parse_json(json_string(text));
    REQUIRE(json.ok());
    CHECK(json->string == text);
  }

  TEST_CASE("numbers read back, and those that are not finite are null") {
    CHECK(json_number(0.1) == "0.1");
    CHECK(json_number(0.1f) == "0.1");
    CHECK(json_number(-3.0) == "-3");
    CHECK(json_number(1e300) == "1e+300");
    CHECK(json_number(-0.0) == "-0.0");
    CHECK(json_number(-0.0f) == "-0.0");
    CHECK(json_number(std::numeric_limits<double>::quiet_NaN()) == "null");
    CHECK(json_number(-std::numeric_limits<double>::infinity()) == "null");
  }

  TEST_CASE("damaged documents never do more than fail") {
    const std::string valid =
        "{\"a\":[1,2.5,{\"b\":\"\\u00e9\"}],\"c\":{\"d\":null,\"e\":false},\"f\":\"text\"}";
    std::mt19937 random(7);
    for (int round = 0; round < 20000; ++round) {
      std::string text = valid;
      for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
        const std::size_t at = random() % text.size();
        if (random() % 3 == 0) {
          text.erase(at, 1 + random() % 4);
        } else {
          text[at] = static_cast<char>(random());
        }
        if (text.empty()) break;
      }
      const auto json = parse_json(text);
      if (!json.ok()) CHECK_FALSE(json.status().message().empty());
    }
  }

  TEST_CASE("the items of one array go to a reader, the rest of the document becomes a tree") {
    std::string items;
    const auto take = [&](const Json& item) {
      items += std::string(to_string(item.kind)) + ",";
      if (const Json* b = item.find("b")) items += "b:" + std::to_string(b->items.size()) + ",";
      return items.size() > 60 ? cox::data_loss("too long") : cox::ok_status();
    };
    const auto read = [&](std::string_view text) {
      items.clear();
      return parse_json(text, 1000, {"list", take});
    };
    const auto json =
        read(R"({"a": [1, {"list": [5]}], "list": [2, {"b": [3, [4]]}, [], "x"], "c": 6})");
    REQUIRE_MESSAGE(json.ok(), json.status().text());
    CHECK(items == "a number,an object,b:2,an array,a text,");
    CHECK(json->members.size() == 3);
    CHECK(json->find("list")->items.empty());
    CHECK(json->find("a")->items[1].find("list")->items.size() == 1);
    CHECK(json->find("c")->number == 6);
    REQUIRE(read(R"({"list": {"list": [1]}})").ok());
    CHECK(items.empty());
    REQUIRE(read(R"([[1], 2])").ok());
    CHECK(items.empty());
    CHECK(read(R"({"list": [1,2,3,4,5,6,7,8,9]})").status().message().find("too long") !=
          std::string::npos);
    CHECK_FALSE(read(R"({"list": [1, {"a": 1, "a": 2}]})").ok());
    CHECK_FALSE(read(R"({"list": [1)").ok());
  }
}

}  // namespace
