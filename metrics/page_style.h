// The style sheet of the pages, and the mark of the project as inline SVG. Constants; light and
// dark follow the reader's system, and every colour that carries meaning comes with a word.
#pragma once

#include <string_view>

namespace cox::metrics {

std::string_view page_style();
std::string_view page_mark();

}  // namespace cox::metrics
