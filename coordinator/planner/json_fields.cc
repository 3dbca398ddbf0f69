#include "coordinator/planner/json_fields.h"

#include <array>
#include <cmath>

#include "coordinator/planner/memory_problem.h"

namespace cox::planner {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {"null",   "a truth value", "a number",
                                                    "a text", "an array",      "an object"};

std::string name_of(JsonKind kind) {
  return std::string(kKinds[static_cast<std::size_t>(kind)]);
}

}  // namespace

void JsonFields::fail(const std::string& message) {
  if (status_.ok()) status_ = invalid_argument(message);
}

const Json* JsonFields::member(const Json& object, std::string_view name, JsonKind kind,
                               const std::string& where) {
  if (!ok()) return nullptr;
  if (object.kind != JsonKind::object) {
    fail(where + ": expected an object, found " + name_of(object.kind));
    return nullptr;
  }
  const Json* found = object.find(name);
  if (found && found->kind == kind) return found;
  fail(where + ": " + std::string(name) + ": expected " + name_of(kind) + ", found " +
       (found ? name_of(found->kind) : "no such member"));
  return nullptr;
}

std::int64_t JsonFields::integer(const Json& value, const std::string& where) {
  if (!ok()) return 0;
  const double most = static_cast<double>(kMaxStageValue);
  if (value.kind != JsonKind::number)
    fail(where + ": expected a whole number, found " + name_of(value.kind));
  else if (!(value.number >= 0 && value.number <= most) || value.number != std::floor(value.number))
    fail(where + ": expected a whole number from 0 to " + std::to_string(kMaxStageValue) +
         ", found " + std::to_string(value.number));
  return ok() ? static_cast<std::int64_t>(value.number) : 0;
}

std::int64_t JsonFields::integer(const Json& object, std::string_view name,
                                 const std::string& where) {
  const Json* found = member(object, name, JsonKind::number, where);
  return found ? integer(*found, where + ": " + std::string(name)) : 0;
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
  fail(where + ": " + std::string(name) + ": expected " + std::to_string(least) + " to " +
       std::to_string(most) + " items, found " + std::to_string(size));
  return kNone;
}

}  // namespace cox::planner
