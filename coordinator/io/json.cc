#include "coordinator/io/json.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::io {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxValues = 1 << 20;  // some 100 bytes each
constexpr std::size_t kMaxMessage = 200;

constexpr std::size_t kMaxNames = 1 << 20;  // in an object, some 100 bytes each

// The bytes of a document as they arrive, and the lexer's position.
class Bytes {
 public:
  explicit Bytes(const NextBytes& next) : next_(next) {}

  bool is_over() {
    while (at_ == piece_.size() && !is_over_) take_piece();
    return is_over_;
  }
  const char& byte() const { return piece_[at_]; }
  void advance() { ++at_; }

  std::uint64_t position() const { return before_ + at_; }
  // Records the end of a name, a value or a bracket.
  void token_ends() { token_ = position(); }
  const Status& status() const { return status_; }

 private:
  void take_piece() {
    before_ += piece_.size();
    piece_ = {};
    at_ = 0;
    if (before_ - token_ > kMaxJsonTokenBytes)
      status_ = data_loss("expected names and values of at most ", kMaxJsonTokenBytes,
                          " bytes, found a longer one");
    auto piece = status_.ok() ? next_() : Result<std::string_view>(status_);
    if (!piece.ok()) status_ = piece.status();
    is_over_ = !piece.ok() || piece->empty();
    if (!is_over_) check(*piece);
  }
  // Refuses two cases: the lexer takes a zero byte for the end, and skips a byte-order mark.
  void check(std::string_view piece) {
    piece_ = piece;
    if (before_ == 0 && piece.starts_with("\xEF\xBB\xBF"))
      status_ = data_loss("expected a value, found a byte-order mark");
    if (const std::size_t zero = piece.find('\0'); zero != std::string_view::npos) {
      status_ = data_loss("expected text without zero bytes, found a zero byte");
      at_ = zero;
    }
    is_over_ = !status_.ok();
  }

  const NextBytes& next_;
  std::string_view piece_;
  std::size_t at_ = 0;
  std::uint64_t before_ = 0;  // bytes before the piece
  std::uint64_t token_ = 0;
  bool is_over_ = false;
  Status status_;
};

// Iterates over the bytes. All iterators of a document share a Bytes; the end iterator has none.
class ByteIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit ByteIterator(Bytes* bytes) : bytes_(bytes) {}
  reference operator*() const { return bytes_->byte(); }
  ByteIterator& operator++() {
    bytes_->advance();
    return *this;
  }
  ByteIterator operator++(int) {
    ByteIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const ByteIterator& other) const { return is_over() == other.is_over(); }

 private:
  bool is_over() const { return bytes_ == nullptr || bytes_->is_over(); }
  Bytes* bytes_;
};

// Shortens nlohmann's "[json.exception.parse_error.101] parse error at line 1, column 5: syntax
// error while parsing X - invalid literal; last read: 'Y'; expected Z". Drops the quoted document
// text, which may be of any length and not UTF-8.
std::string complaint_of(std::string_view what) {
  constexpr std::string_view kSyntax = "syntax error ";
  constexpr std::string_view kLastRead = "; last read: '";
  if (const std::size_t at = what.find(kSyntax); at != std::string_view::npos)
    what.remove_prefix(at + kSyntax.size());
  else if (const std::size_t end = what.find("] "); end != std::string_view::npos)
    what.remove_prefix(end + 2);
  std::string out(what.substr(0, what.find(kLastRead)));
  const std::size_t expected = what.rfind("; expected ");
  if (out.size() < what.size() && expected != std::string_view::npos) out += what.substr(expected);
  if (out.size() > kMaxMessage) out = concat(out.substr(0, kMaxMessage), "...");
  return out;
}

// Turns the lexer's calls into JsonEvents and adds two checks: depth and duplicate names. The names
// of the methods are nlohmann's.
class StrictReader {
 public:
  StrictReader(JsonEvents& events, const NextBytes& next) : events_(events), bytes_(next) {}

  Status read() {
    nlohmann::json::sax_parse(ByteIterator(&bytes_), ByteIterator(nullptr), this);
    // The cause of the cut says more than the lexer's error about it.
    return bytes_.status().ok() ? std::move(status_) : with_place(bytes_.status());
  }

  bool null() { return pass({}); }
  bool boolean(bool value) { return pass({.kind = JsonKind::boolean, .boolean = value}); }
  bool number_integer(std::int64_t value) {
    return pass({.kind = JsonKind::number, .number = static_cast<double>(value)});
  }
  bool number_unsigned(std::uint64_t value) {
    return pass({.kind = JsonKind::number, .number = static_cast<double>(value), .whole = value});
  }
  bool number_float(double value, const std::string&) {
    return pass({.kind = JsonKind::number, .number = value});
  }
  bool string(const std::string& value) {
    return pass({.kind = JsonKind::string, .string = value});
  }
  bool binary(const nlohmann::json::binary_t&) { return false; }  // never in text

  bool start_object(std::size_t) { return begin(JsonKind::object); }
  bool start_array(std::size_t) { return begin(JsonKind::array); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }
  bool key(const std::string& name) {
    if (!names_.back().insert(name).second)
      return keep(data_loss("the name \"", name.substr(0, kMaxMessage), "\" occurs twice"));
    if (names_.back().size() > kMaxNames)
      return keep(data_loss("expected at most ", kMaxNames, " names in an object, found more"));
    return keep(events_.name(name));
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) {
    return keep(data_loss(complaint_of(error.what())));
  }

 private:
  bool pass(const JsonScalar& scalar) { return keep(events_.value(scalar)); }

  bool begin(JsonKind kind) {
    if (names_.size() >= kMaxDepth)
      return keep(data_loss("nested deeper than ", kMaxDepth, " levels"));
    names_.emplace_back();
    return keep(events_.begin(kind));
  }

  bool end() {
    names_.pop_back();
    return keep(events_.end());
  }

  bool keep(const Status& status) {
    bytes_.token_ends();
    if (!status.ok()) status_ = with_place(status);
    return status.ok();
  }
  Status with_place(const Status& status) const {
    return status.with_context(concat("JSON, byte ", bytes_.position()));
  }

  JsonEvents& events_;
  Bytes bytes_;
  std::vector<std::set<std::string>> names_;  // one per open object or array
  Status status_;
};

// Builds the tree. `open_` holds the path from the root to the innermost open container.
class TreeBuilder : public JsonEvents {
 public:
  Status begin(JsonKind kind) override {
    Json made;
    made.kind = kind;
    return add(std::move(made));
  }
  Status name(std::string_view name) override {
    name_ = name;
    return ok_status();
  }
  Status value(const JsonScalar& scalar) override {
    Json made;
    made.kind = scalar.kind;
    made.boolean = scalar.boolean;
    made.number = scalar.number;
    made.string = scalar.string;
    return add(std::move(made));
  }
  Status end() override {
    open_.pop_back();
    return ok_status();
  }

  Json take() { return std::move(root_); }

 private:
  Status add(Json value) {
    if (++values_ > kMaxValues)
      return data_loss("expected at most ", kMaxValues, " values, found more");
    const bool is_open = value.kind == JsonKind::array || value.kind == JsonKind::object;
    Json* made = &root_;
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back()->kind == JsonKind::array) {
      made = &open_.back()->items.emplace_back(std::move(value));
    } else {
      auto& members = open_.back()->members;
      members.push_back({std::move(name_), std::move(value)});
      made = &members.back().value;
    }
    if (is_open) open_.push_back(made);
    return ok_status();
  }

  Json root_;
  std::vector<Json*> open_;  // pointers stay valid: only the innermost container grows
  std::string name_;
  std::size_t values_ = 0;
};

// Builds the tree of the document without the stream's items, and a tree of each item in turn.
class StreamBuilder : public JsonEvents {
 public:
  explicit StreamBuilder(const JsonStream& stream) : stream_(stream) {}

  Status begin(JsonKind kind) override {
    const std::size_t depth = depth_++;
    if (in_array_) return item_.begin(kind);
    in_array_ = depth == 1 && is_named_ && kind == JsonKind::array;
    return rest_.begin(kind);
  }
  Status name(std::string_view name) override {
    if (in_array_) return item_.name(name);
    is_named_ = depth_ == 1 && name == stream_.array;
    return rest_.name(name);
  }
  Status value(const JsonScalar& scalar) override {
    if (!in_array_) return rest_.value(scalar);
    const Status added = item_.value(scalar);
    return added.ok() && depth_ == kArrayDepth ? pass_on() : added;
  }
  Status end() override {
    --depth_;
    if (in_array_ && depth_ >= kArrayDepth) {
      const Status ended = item_.end();
      return ended.ok() && depth_ == kArrayDepth ? pass_on() : ended;
    }
    in_array_ = false;
    return rest_.end();
  }

  Json take() { return rest_.take(); }

 private:
  static constexpr std::size_t kArrayDepth = 2;  // within the array

  Status pass_on() {
    const Json item = item_.take();
    item_ = TreeBuilder();
    return stream_.take(item);
  }

  const JsonStream& stream_;
  TreeBuilder rest_;
  TreeBuilder item_;
  std::size_t depth_ = 0;  // open arrays and objects
  bool is_named_ = false;  // the last name was the array's
  bool in_array_ = false;
};

Status check_size(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return ok_status();
  return resource_exhausted("JSON: expected at most ", max_bytes, " bytes, found ", text.size());
}

void append_escaped(std::string& out, unsigned char c) {
  constexpr char kHex[] = "0123456789abcdef";
  if (c == '"' || c == '\\') {
    out += {'\\', static_cast<char>(c)};
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\t') {
    out += "\\t";
  } else if (c < 0x20 || c == 0x7f) {
    out += {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
  } else {
    out += static_cast<char>(c);
  }
}

template <class Number>
std::string shortest(Number value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

}  // namespace

std::string_view to_string(JsonKind kind) {
  constexpr std::string_view kNames[] = {"null",   "a truth value", "a number",
                                         "a text", "an array",      "an object"};
  return kNames[static_cast<std::size_t>(kind)];
}

Status read_json(const NextBytes& next, JsonEvents& events) {
  return StrictReader(events, next).read();
}

Status read_json(std::string_view text, JsonEvents& events) {
  return read_json(one_piece(text), events);
}

const Json* Json::find(std::string_view name) const {
  for (const JsonMember& member : members) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

Result<Json> parse_json(std::string_view text, std::size_t max_bytes) {
  if (Status fits = check_size(text, max_bytes); !fits.ok()) return fits;
  TreeBuilder tree;
  if (Status status = read_json(text, tree); !status.ok()) return status;
  return tree.take();
}

Result<Json> parse_json(std::string_view text, std::size_t max_bytes, const JsonStream& stream) {
  if (Status fits = check_size(text, max_bytes); !fits.ok()) return fits;
  StreamBuilder tree(stream);
  if (Status status = read_json(text, tree); !status.ok()) return status;
  return tree.take();
}

std::string strict_json(std::string_view line) {
  std::string out;
  bool is_text = false;
  while (!line.empty()) {
    for (const std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
      if (is_text || !line.starts_with(word)) continue;
      out += "null";
      line.remove_prefix(word.size());
    }
    if (line.empty()) break;
    const std::size_t piece =
        is_text && line.front() == '\\' ? std::min<std::size_t>(2, line.size()) : 1;
    if (line.front() == '"') is_text = !is_text;
    out += line.substr(0, piece);
    line.remove_prefix(piece);
  }
  return out;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : valid_utf8(text)) append_escaped(out, static_cast<unsigned char>(c));
  return out + '"';
}

// A reader would take "-0" for the whole number 0, without the sign.
std::string json_number(double value) {
  return value == 0 && std::signbit(value) ? "-0.0" : shortest(value);
}

std::string json_number(float value) {
  return value == 0 && std::signbit(value) ? "-0.0" : shortest(value);
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  out_ += json_string(name);
  out_ += ':';
  last_ = Last::key;
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  last_ = Last::value;
  return *this;
}

JsonWriter& JsonWriter::new_line(std::size_t indent) {
  line_break_ = '\n' + std::string(indent, ' ');
  return *this;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  last_ = Last::nothing;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  last_ = Last::nothing;  // no comma before a bracket that closes
  separate();
  out_ += bracket;
  last_ = Last::value;
  return *this;
}

void JsonWriter::separate() {
  if (last_ == Last::value) out_ += ',';
  out_ += std::exchange(line_break_, {});
}

}  // namespace cox::io
