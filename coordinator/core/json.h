// Strict JSON for files from outside: safetensors headers, model configurations, expected values.
// JsonReader pulls one token at a time, so a caller can check a hostile document while reading it
// and never holds more than it asked for. Json is a small tree on top for documents of bounded
// size.
//
// Strict means RFC 8259 and no more: UTF-8 only, no duplicate names in an object, no comments, no
// trailing commas, no NaN, nothing behind the value but white space, nesting of at most 64 levels.
// After the first error every later call fails too; status() names the byte. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"

namespace cox {

enum class JsonKind { null, boolean, number, string, array, object };

class JsonReader {
 public:
  // `text` must outlive the reader.
  explicit JsonReader(std::string_view text) : text_(text) {}

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  std::size_t offset() const { return at_; }

  // What the next value is; consumes white space only. Fails on a byte that starts no value.
  JsonKind peek();

  // Each reads one value of its kind, or fails and returns an empty value.
  std::string read_string();
  std::uint64_t read_uint64();  // digits only: no sign, fraction or exponent, at most 2^64 - 1
  double read_number();         // rounds as strtod does; a magnitude beyond double fails
  bool read_bool();
  void read_null();

  // for (r.begin_object(); r.next_member(name);) ...read one value...
  // The caller looks after duplicate names; `name` is overwritten by each call.
  void begin_object();
  bool next_member(std::string& name);
  void begin_array();
  bool next_item();

  // Fails unless only white space is left.
  void finish();
  // Records the caller's own complaint at the current byte, unless there is an earlier one.
  void fail(const std::string& what);

 private:
  void skip_space();
  bool take(char wanted);
  void expect(char wanted);
  void expect_word(std::string_view word);
  bool next_in(char close);
  std::string_view number_token();
  void begin(char open);
  void read_escape(std::string& out);
  std::uint32_t read_hex4();
  void read_utf8(std::string& out);

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<bool> used_;  // one per open container: has it had an element?
  Status status_;
};

struct JsonMember;

// A parsed document. Numbers are doubles; integers beyond 2^53 need JsonReader.
struct Json {
  JsonKind kind = JsonKind::null;
  bool boolean = false;
  double number = 0;
  std::string string;
  std::vector<Json> items;          // of an array
  std::vector<JsonMember> members;  // of an object, in the order of the document

  // The member of that name, or null if there is none or this is no object.
  const Json* find(std::string_view name) const;
};

struct JsonMember {
  std::string name;
  Json value;
};

// Parses a whole document of at most `max_bytes` and about a million values.
Result<Json> parse_json(std::string_view text, std::size_t max_bytes = std::size_t{16} << 20);

// `text` as a JSON string with its quotes. Requires valid UTF-8.
std::string json_quote(std::string_view text);

}  // namespace cox
