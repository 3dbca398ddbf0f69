#include "coordinator/core/proto_schema.h"

#include "coordinator/core/text.h"

namespace cox {

std::string ProtoSchema::define(std::string_view kind, const std::string& name,
                                const std::string& lines) {
  const std::string text = concat(kind, " ", name, " {\n", lines, "}\n");
  const auto [known, is_new] = defined_.emplace(name, text);
  if (is_new) {
    text_ += (text_.empty() ? "" : "\n") + text;
  } else if (known->second != text) {
    conflicts_.push_back(name);
  }
  return name;
}

std::string ProtoSchema::line(std::string_view type, std::string_view name, std::uint64_t number) {
  return concat("  ", type, type.empty() ? "" : " ", name, " = ", number, ";\n");
}

std::string ProtoSchema::enumerator(std::string_view enum_name, std::string_view name) {
  std::string out;
  for (const char c : enum_name) {
    const bool is_large = c >= 'A' && c <= 'Z';
    if (is_large && !out.empty()) out += '_';
    out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  out += '_';
  for (const char c : name) {
    const bool is_letter = c >= 'a' && c <= 'z';
    const bool is_digit = c >= '0' && c <= '9';
    out += is_letter ? static_cast<char>(c - 'a' + 'A') : is_digit ? c : '_';
  }
  return out;
}

}  // namespace cox
