#include "coordinator/core/json.h"

#include <set>
#include <utility>

namespace cox {
namespace {

Json read_value(JsonReader& reader);

void read_members(JsonReader& reader, Json& out) {
  std::set<std::string> seen;
  std::string name;
  for (reader.begin_object(); reader.next_member(name);) {
    if (!seen.insert(name).second) reader.fail("the name \"" + name + "\" occurs twice");
    out.members.push_back({name, read_value(reader)});
  }
}

Json read_value(JsonReader& reader) {
  Json out;
  if (!reader.ok()) return out;
  out.kind = reader.peek();
  switch (out.kind) {
    case JsonKind::null:
      reader.read_null();
      break;
    case JsonKind::boolean:
      out.boolean = reader.read_bool();
      break;
    case JsonKind::number:
      out.number = reader.read_number();
      break;
    case JsonKind::string:
      out.string = reader.read_string();
      break;
    case JsonKind::array:
      for (reader.begin_array(); reader.next_item();) out.items.push_back(read_value(reader));
      break;
    case JsonKind::object:
      read_members(reader, out);
      break;
  }
  return out;
}

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
  Json value = read_value(reader);
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
