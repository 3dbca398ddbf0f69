#include "coordinator/io/json_fields.h"

#include <cmath>

#include "coordinator/core/text.h"

namespace cox::io {

void JsonFields::fail(const std::string& message) {
  if (status_.ok()) status_ = {code_, message};
}

const Json* JsonFields::member(const Json& object, std::string_view name, JsonKind kind,
                               const std::string& where) {
  if (!ok()) return nullptr;
  if (object.kind != JsonKind::object) {
    fail(concat(where, ": expected an object, found ", to_string(object.kind)));
    return nullptr;
  }
  const Json* found = object.find(name);
  if (found && found->kind == kind) return found;
  fail(concat(where, ": ", name, ": expected ", to_string(kind), ", found ",
              found ? to_string(found->kind) : "no such member"));
  return nullptr;
}

double JsonFields::number(const Json& value, const std::string& where) {
  if (value.kind != JsonKind::number)
    fail(concat(where, ": expected a number, found ", to_string(value.kind)));
  return ok() ? value.number : 0;
}

double JsonFields::number(const Json& object, std::string_view name, const std::string& where) {
  const Json* found = member(object, name, JsonKind::number, where);
  return found ? found->number : 0;
}

std::int64_t JsonFields::integer(const Json& value, std::int64_t most, const std::string& where) {
  if (value.kind != JsonKind::number)
    fail(concat(where, ": expected a whole number, found ", to_string(value.kind)));
  else if (!(value.number >= 0 && value.number <= static_cast<double>(most)) ||
           value.number != std::floor(value.number))
    fail(concat(where, ": expected a whole number from 0 to ", most, ", found ",
                json_number(value.number)));
  return ok() ? static_cast<std::int64_t>(value.number) : 0;
}

std::int64_t JsonFields::integer(const Json& object, std::string_view name, std::int64_t most,
                                 const std::string& where) {
  const Json* found = member(object, name, JsonKind::number, where);
  return found ? integer(*found, most, concat(where, ": ", name)) : 0;
}

std::string JsonFields::text(const Json& object, std::string_view name, const std::string& where) {
  const Json* found = member(object, name, JsonKind::string, where);
  return found ? found->string : std::string();
}

const std::vector<Json>& JsonFields::items(const Json& object, std::string_view name,
                                           std::size_t least, std::size_t most,
                                           const std::string& where) {
  static const std::vector<Json> kNone;
  const Json* found = member(object, name, JsonKind::array, where);
  if (!found) return kNone;
  const std::size_t size = found->items.size();
  if (size >= least && size <= most) return found->items;
  fail(concat(where, ": ", name, ": expected ", least, " to ", most, " items, found ", size));
  return kNone;
}

void JsonFields::format(const Json& root, std::string_view name, std::int64_t version,
                        const std::string& where) {
  constexpr std::int64_t kMostVersion = std::int64_t{1} << 53;
  if (text(root, "format", where) != name)
    fail(concat(where, ": expected the format '", name, "', found another"));
  const std::int64_t found = integer(root, "version", kMostVersion, where);
  if (found != version)
    fail(concat(where, ": expected version ", version, ", found ", found,
                ": written by another release"));
}

}  // namespace cox::io
