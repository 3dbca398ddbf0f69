// Building blocks of the HTML pages. Everything that came from ranks, configuration or the job goes
// through escape(). Pages are well-formed XML too, which the tests check. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cox::metrics {

// Returns `text` so that it is safe as text and inside quoted attributes; replaces invalid UTF-8.
std::string escape(std::string_view text);

// Returns a short word on a coloured ground; `css_class` is good, warn, bad or empty. The text is
// escaped.
std::string tag(std::string_view css_class, std::string_view text);
// Returns a card with a title around `body`, which is HTML already; nothing where that is empty.
std::string card(std::string_view title, std::string_view body);

// Returns a paragraph that stands out; `css_class` is calm, bad or empty. The text is escaped.
std::string note(std::string_view css_class, std::string_view text);
// Returns a paragraph in small print. `html` is HTML already.
std::string hint(std::string_view html);
// Returns a list of names with their values, which are HTML already. A fact without a value is left
// out.
struct Fact {
  std::string_view name;
  std::string value;
};
std::string facts(const std::vector<Fact>& list);
// Returns a bar of which so many percent are filled.
std::string meter(double percent, std::string_view css_class);

// Table builds an HTML table row by row. A column is its title and, behind its last slash, the
// classes of its cells: "Memory/n wide" has figures and is left out on small screens.
class Table {
 public:
  explicit Table(const std::vector<std::string_view>& columns, std::string_view css_class = {});

  // Adds a row with one cell a column, each HTML already. Where there are fewer, the last one
  // reaches to the end.
  void add(const std::vector<std::string>& cells, std::string_view css_class = {});
  // Adds a row with a link to the others, where more rows than the first `shown` exist.
  void add_more(std::string_view path, std::size_t rows, std::size_t shown);
  std::string html() const { return out_ + "</tbody></table></div>"; }

 private:
  std::vector<std::string> classes_;  // as attributes; one a column
  std::string out_;
};

// Returns the mark of Coxswain as inline SVG.
std::string_view page_mark();

// Returns a whole document around `body`. It and `head`, which goes into the head, are HTML
// already.
std::string html_document(std::string_view title, std::string_view head, std::string_view body);

}  // namespace cox::metrics
