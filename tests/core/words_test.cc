#include "coordinator/core/words.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;

TEST_SUITE("core") {
  TEST_CASE("a text from outside stays one line and leaves the terminal alone") {
    CHECK(printable("plain text, \xc3\xa9") == "plain text, \xc3\xa9");
    CHECK(printable("a\nb\tc\x1b[31m\x7f") == "a?b?c?[31m?");
    CHECK(printable(std::string_view("a\0b", 3)) == "a?b");
    CHECK(printable("a\xc2\x9b"
                    "31m") == "a?31m");  // a control character of two bytes
    CHECK(printable("a\xff") == "a\xEF\xBF\xBD");
  }

  TEST_CASE("a long text is shown by its beginning") {
    CHECK(shown("short") == "short");
    CHECK(shown(std::string(80, 'x')) == std::string(80, 'x'));
    CHECK(shown(std::string(81, 'x')) == std::string(80, 'x') + "...");
  }

  TEST_CASE("the nearest word is the one with the fewest edits, the first of equals") {
    const std::vector<std::string> known = {"replay", "plan", "config"};
    CHECK(nearest(known, "replai") == "replay");
    CHECK(nearest(known, "pln") == "plan");
    CHECK(nearest(known, "confgi") == "config");
    CHECK(nearest(known, "") == "plan");
    CHECK(nearest(std::vector<std::string>{"ab", "ac"}, "a") == "ab");
    CHECK(edit_distance("kitten", "sitting") == 3);
    CHECK(nearest(known, std::string(1 << 20, 'g')) == "config");  // finds a close name at once
  }

  TEST_CASE("leaving out comparisons changes no answer") {
    std::mt19937 random(7);
    const auto word = [&random] {
      std::string made(random() % 12, 'a');
      for (char& c : made) c = static_cast<char>("abc\xff"[random() % 4]);
      return made;
    };
    for (int trial = 0; trial < 500; ++trial) {
      std::vector<std::string> known(1 + random() % 6);
      for (std::string& each : known) each = word();
      const std::string asked = word();
      const auto plain = std::ranges::min_element(
          known, {}, [&](const std::string& each) { return edit_distance(each, asked); });
      CHECK(nearest(known, asked) == *plain);
    }
  }
}
