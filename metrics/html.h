// Building blocks of the HTML pages. Everything that came from ranks, configuration or the job goes
// through escape(). Pages are well-formed XML too, which the tests check. Pure.
#pragma once

#include <string>
#include <string_view>

#include "metrics/routes.h"

namespace cox::metrics {

// Safe as text and inside quoted attributes; invalid UTF-8 is replaced.
std::string escape(std::string_view text);

// A whole document around `body`, which is HTML already. `refresh_seconds` 0 = the page stays.
std::string html_document(std::string_view title, int refresh_seconds, std::string_view body);

// The page at "/": what there is.
std::string index_page(const Served& served);

}  // namespace cox::metrics
