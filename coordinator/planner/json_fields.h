// Checked access to the members of a parsed JSON object. The first thing that is not as expected
// is kept, with the place where it is; later calls return empty values. One object of this for a
// whole document. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/json.h"
#include "coordinator/core/status.h"

namespace cox::planner {

class JsonFields {
 public:
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  // Each says in `where` which object it is about: "instance 3: block 1".
  std::int64_t integer(const Json& object, std::string_view name, const std::string& where);
  std::int64_t integer(const Json& value, const std::string& where);
  std::string text(const Json& object, std::string_view name, const std::string& where);
  // The items of the array, which must have `least` to `most` of them.
  const std::vector<Json>& items(const Json& object, std::string_view name, std::size_t least,
                                 std::size_t most, const std::string& where);
  void fail(const std::string& message);

 private:
  const Json* member(const Json& object, std::string_view name, JsonKind kind,
                     const std::string& where);

  Status status_;
};

inline constexpr std::size_t kMaxPlanFileBytes = std::size_t{32} << 20;

}  // namespace cox::planner
