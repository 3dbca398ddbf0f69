#include "coordinator/core/json.h"

#include <cstddef>
#include <set>
#include <string>
#include <utility>

namespace cox {
namespace {

constexpr std::size_t kMaxValues = 1 << 20;  // some 100 bytes each

class TreeReader {
 public:
  explicit TreeReader(JsonReader& reader) : reader_(reader) {}

  Json value() {
    Json out;
    if (++values_ > kMaxValues)
      reader_.fail("expected at most " + std::to_string(kMaxValues) + " values, found more");
    if (!reader_.ok()) return out;
    out.kind = reader_.peek();
    switch (out.kind) {
      case JsonKind::null:
        reader_.read_null();
        break;
      case JsonKind::boolean:
        out.boolean = reader_.read_bool();
        break;
      case JsonKind::number:
        out.number = reader_.read_number();
        break;
      case JsonKind::string:
        out.string = reader_.read_string();
        break;
      case JsonKind::array:
        for (reader_.begin_array(); reader_.next_item();) out.items.push_back(value());
        break;
      case JsonKind::object:
        read_members(out);
        break;
    }
    return out;
  }

 private:
  void read_members(Json& out) {
    std::set<std::string> seen;
    std::string name;
    for (reader_.begin_object(); reader_.next_member(name);) {
      if (!seen.insert(name).second) reader_.fail("the name \"" + name + "\" occurs twice");
      out.members.push_back({name, value()});
    }
  }

  JsonReader& reader_;
  std::size_t values_ = 0;
};

}  // namespace

const Json* Json::find(std::string_view name) const {
  for (const JsonMember& member : members) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

Result<Json> parse_json(std::string_view text, std::size_t max_bytes) {
  if (text.size() > max_bytes) {
    return resource_exhausted("JSON: expected at most " + std::to_string(max_bytes) +
                              " bytes, found " + std::to_string(text.size()));
  }
  JsonReader reader(text);
  Json value = TreeReader(reader).value();
  reader.finish();
  if (!reader.ok()) return reader.status();
  return value;
}

std::string json_quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20) {
      out += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

}  // namespace cox
