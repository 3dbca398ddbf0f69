#include "metrics/pages/template.h"

#include <algorithm>
#include <array>

#include "coordinator/core/never_destroyed.h"
#include "coordinator/core/text.h"

namespace cox::metrics {
namespace {

using Node = Templates::Node;
using Nodes = std::vector<Node>;
using Place = Templates::Place;
using Kind = Templates::Kind;

// --- Values into text.

constexpr std::string_view kSpecial = "&<>\"'";
constexpr std::array kEntities = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};

bool is_plain(signed char c) {
  return c >= ' ' && c != '&' && c != '<' && c != '>' && c != '"' && c != '\'';
}

bool is_beyond_ascii(signed char c) {
  return c < 0;
}

std::string_view beginning(std::string_view text, bool (*is_part)(signed char)) {
  return {text.begin(), std::ranges::find_if_not(text, is_part)};
}

// Copies plain text at once, because nearly all text is plain.
void append_escaped(std::string& to, std::string_view text) {
  while (!text.empty()) {
    const std::string_view plain = beginning(text, is_plain);
    const std::string_view beyond = beginning(text.substr(plain.size()), is_beyond_ascii);
    to.append(plain);
    if (!beyond.empty()) to += valid_utf8(beyond);
    text.remove_prefix(plain.size() + beyond.size());
    if (text.empty() || is_plain(text.front())) continue;
    const std::size_t special = kSpecial.find(text.front());
    to += special == std::string_view::npos ? " " : kEntities[special];
    text.remove_prefix(1);
  }
}

bool is_allowed(std::string_view url) {
  const std::string_view scheme = url.substr(0, url.find_first_of("/?#"));
  return scheme.find(':') == std::string_view::npos || scheme.starts_with("http:") ||
         scheme.starts_with("https:");
}

void append_value(std::string& to, const Value& value, Place place) {
  const std::string_view text = value.text();
  if (place == Place::text && value.is_markup())
    to += text;
  else if (place == Place::style)
    to += text.find_first_not_of("0123456789.-") == std::string_view::npos ? text : "0";
  else
    append_escaped(to, place == Place::url && !is_allowed(text) ? "#" : text);
}

struct Scope {
  const Record& values;
  const Scope* outer;

  const Value* find(std::string_view name) const {
    const Value* value = values.find(name);
    return value != nullptr || outer == nullptr ? value : outer->find(name);
  }
};

void write(const Nodes& nodes, std::size_t begin, std::size_t end, const Scope& scope,
           std::string& to) {
  for (std::size_t i = begin; i < end; i = std::max(i + 1, nodes[i].end)) {
    const Node& node = nodes[i];
    const Value* value = node.kind == Kind::text ? nullptr : scope.find(node.text);
    if (value == nullptr) {
      to += node.kind == Kind::text ? node.text : "{{" + node.text + "}}";
    } else if (node.kind == Kind::value) {
      append_value(to, *value, node.place);
    } else if (value->is_set() == (node.kind == Kind::section)) {
      if (value->records().empty()) write(nodes, i + 1, node.end, scope, to);
      for (const Record& record : value->records())
        write(nodes, i + 1, node.end, {record, &scope}, to);
    }
  }
}

// --- Files into nodes.

constexpr int kMostDepth = 8;  // deeper parts include each other
constexpr std::array<std::string_view, 5> kAddresses = {"href", "src", "action", "formaction",
                                                        "xlink:href"};

// Parser parses one file, and the file's parts, into the same nodes. The parser follows the HTML
// character by character to find the place of each value.
class Parser {
 public:
  explicit Parser(std::span<const PageFile> files) : files_(files) {}

  Result<Nodes> parse(const PageFile& file) {
    const bool is_raw = file.name.ends_with(".css") || file.name.ends_with(".js");
    state_ = is_raw ? State::raw : State::text;
    parse_file(file);
    if (!fault_.empty()) return invalid_argument(file.name, ": ", fault_);
    return std::move(nodes_);
  }

 private:
  enum class State : std::uint8_t { text, tag, value, raw };  // raw: in a script or a style

  void fail(std::string_view what, std::string_view where) {
    if (fault_.empty()) fault_ = concat(what, " at ", where.substr(0, 40));
  }

  // Parses a file that begins and ends in the same state: between tags, or in a script or style.
  void parse_file(const PageFile& file) {
    const State before = state_;
    std::string_view text = file.text;
    if (++depth_ > kMostDepth) fail("a part that includes itself", file.name);
    parse_until(text, "");
    --depth_;
    if (state_ != before) fail("a tag without end", file.name);
  }

  void parse_until(std::string_view& text, std::string_view closing) {
    while (fault_.empty() && !text.empty()) {
      const std::size_t begin = std::min(text.find("{{"), text.size());
      for (const char c : text.substr(0, begin)) follow(c);
      if (begin > 0) nodes_.push_back({Kind::text, std::string(text.substr(0, begin))});
      text.remove_prefix(begin);
      if (text.empty()) break;
      const std::size_t end = text.find("}}");
      const std::string_view mark = text.substr(2, end - 2);
      if (end == std::string_view::npos || mark.find_first_not_of("#^/>") == std::string_view::npos)
        return fail("a mark without a name", text);
      text.remove_prefix(end + 2);
      if (mark == concat("/", closing)) return;
      parse_mark(mark, text);
    }
    if (!closing.empty()) fail("a section without end", closing);
  }

  void parse_mark(std::string_view mark, std::string_view& text) {
    const std::string_view name = mark.substr(1);
    if (mark.front() == '/') return fail("a section that is not open", name);
    if (mark.front() == '#') return parse_section(text, Kind::section, name);
    if (mark.front() == '^') return parse_section(text, Kind::inverted, name);
    if (mark.front() != '>') return nodes_.push_back({Kind::value, std::string(mark), place(mark)});
    const auto part = std::ranges::find(files_, name, &PageFile::name);
    part != files_.end() ? parse_file(*part) : fail("an unknown part", name);
  }

  void parse_section(std::string_view& text, Kind kind, std::string_view name) {
    const std::size_t node = nodes_.size();
    const std::pair before(state_, quote_);
    nodes_.push_back({kind, std::string(name)});
    parse_until(text, name);
    nodes_[node].end = nodes_.size();
    if (before != std::pair(state_, quote_)) fail("a section that leaves a tag open", name);
  }

  Place place(std::string_view name) {
    if (state_ == State::raw || state_ == State::tag) fail("a value in a tag or a script", name);
    if (state_ != State::value) return Place::text;
    if (word_.starts_with("on") || word_ == "srcdoc") fail("a value in a handler", name);
    if (word_ == "style") return Place::style;
    return std::ranges::count(kAddresses, word_) > 0 ? Place::url : Place::attribute;
  }

  void follow(char c) {
    if (state_ == State::tag) return follow_in_tag(c);
    const bool begins = state_ == State::text && c == '<';
    const bool ends = state_ == State::value && c == quote_;
    word_ += state_ == State::raw ? std::string(1, c) : "";
    if (word_.ends_with("</script") || word_.ends_with("</style") || begins || ends) {
      if (!ends) tag_.clear();
      state_ = State::tag;
      quote_ = 0;
      word_.clear();
    }
  }

  void follow_in_tag(char c) {
    const bool wants_value = word_.ends_with('=');
    if (c == ' ' || c == '\n' || c == '>') {
      if (tag_.empty()) tag_ = word_;
      word_.clear();
    } else if (c == '"' || c == '\'') {
      state_ = State::value;
      quote_ = c;
      if (wants_value) word_.pop_back();
    } else {
      word_ += c;
    }
    if (wants_value != (state_ == State::value) || word_ == "!--")
      fail("a comment, or an attribute without quotes", tag_);
    if (c == '>') state_ = tag_ == "script" || tag_ == "style" ? State::raw : State::text;
  }

  std::span<const PageFile> files_;
  Nodes nodes_;
  State state_ = State::text;
  char quote_ = 0;
  std::string tag_;   // name of the tag; empty until a space
  std::string word_;  // in a tag: newest name, then "=" until the value begins; else raw text
  int depth_ = 0;     // of parts in parts
  std::string fault_;
};

}  // namespace

Result<Templates> Templates::parse(std::span<const PageFile> files) {
  Templates out;
  for (const PageFile& file : files) {
    Result<Nodes> nodes = Parser(files).parse(file);
    if (!nodes.ok()) return nodes.status();
    out.pages_.emplace(file.name, std::move(*nodes));
  }
  return out;
}

void Templates::render(std::string_view page, const Record& values, std::string& to) const {
  const auto found = pages_.find(page);
  if (found != pages_.end()) write(found->second, 0, found->second.size(), {values, nullptr}, to);
}

std::string render(std::string_view page, const Record& values) {
  static const Templates& templates = never_destroyed(Templates::parse(page_files()).value());
  std::string out;
  templates.render(page, values, out);
  return out;
}

}  // namespace cox::metrics
