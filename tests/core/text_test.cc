#include "coordinator/core/text.h"

#include <vector>

#include <doctest/doctest.h>

using namespace cox;

TEST_SUITE("core") {
  TEST_CASE("a text is as long as its parts") {
    CHECK(concat(3, " of ", "4") == "3 of 4");
    CHECK(concat(std::string(5000, 'x'), "y").size() == 5001);
    CHECK(concat("").empty());
  }

  TEST_CASE("zeros fill a number up to its width and cut nothing off") {
    CHECK(zero_padded(42, 5) == "00042");
    CHECK(zero_padded(0, 2) == "00");
    CHECK(zero_padded(12345, 5) == "12345");
    CHECK(zero_padded(123456, 5) == "123456");
    CHECK(zero_padded(18446744073709551615U, 1) == "18446744073709551615");
  }

  TEST_CASE("sets of ranks are ranges") {
    CHECK(ranges_text(std::vector<std::size_t>{}).empty());
    CHECK(ranges_text(std::vector<std::size_t>{7}) == "7");
    CHECK(ranges_text(std::vector<std::size_t>{0, 1, 2, 3, 7, 9, 10}) == "0-3, 7, 9-10");
    CHECK(ranges_text(std::vector<std::size_t>{0, 2, 4, 6, 7}, 2) == "0, 2 and 3 more");
    CHECK(ranks_text(std::vector<std::size_t>{2}, 4) == "rank 2");
    CHECK(ranks_text(std::vector<std::size_t>{0, 1, 3}, 4) == "ranks 0-1, 3");
    CHECK(ranks_text(std::vector<std::size_t>{0, 1}, 2) == "all 2 ranks");
    CHECK(ranks_text(std::vector<std::size_t>{0}, 1) == "rank 0");
  }

  TEST_CASE("a text that is too long ends behind a whole word or character") {
    CHECK(cox::shortened("rank 1 is slow", 14) == "rank 1 is slow");
    CHECK(cox::shortened("rank 1 is slow", 13) == "rank 1 is ...");
    CHECK(cox::shortened("rank 1 is slow", 12) == "rank 1 ...");
    CHECK(cox::shortened("transformer.h.0", 10) == "transf ...");
    CHECK(cox::shortened("ab\u00e9\u00e9\u00e9", 7) == "ab ...");
    CHECK(cox::shortened("ab\u00e9\u00e9\u00e9x", 8) == "ab\u00e9 ...");
    CHECK(cox::shortened("", 5).empty());
    for (std::size_t width = 0; width < 5; ++width)
      CHECK(cox::shortened("transformer", width) == " ...");
  }

  TEST_CASE("bytes that are not UTF-8 are replaced one by one") {
    CHECK(valid_utf8("a\xff\xfe"
                     "b") ==
          "a\xEF\xBF\xBD\xEF\xBF\xBD"
          "b");
    CHECK(valid_utf8("\xC0\xAF") == "\xEF\xBF\xBD\xEF\xBF\xBD");          // overlong
    CHECK(valid_utf8("\xED\xA0\x80").find('\xED') == std::string::npos);  // surrogate
    CHECK(valid_utf8("\xE2\x82") == "\xEF\xBF\xBD\xEF\xBF\xBD");          // cut short
    CHECK(valid_utf8("€ 😀") == "€ 😀");
    CHECK(valid_utf8("\xF4\x90\x80\x80").find('\xF4') == std::string::npos);  // beyond the last
  }
}
