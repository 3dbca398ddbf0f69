// Checked access to the members of a parsed JSON document. The first error is kept with its place;
// later calls return empty values. A list of reads thus needs one check at the end. Use one
// JsonFields for a whole document. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/io/json.h"

namespace cox::io {

class JsonFields {
 public:
  // `code` is the code of every kept error.
  explicit JsonFields(StatusCode code = StatusCode::invalid_argument) : code_(code) {}

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  // In every function below, `where` names the object for messages: "instance 3: block 1".

  // Returns the member with the name and kind, or null after an error.
  const Json* member(const Json& object, std::string_view name, JsonKind kind,
                     const std::string& where);
  double number(const Json& object, std::string_view name, const std::string& where);
  double number(const Json& value, const std::string& where);
  // Returns a whole number from 0 to `most`. REQUIRES: most <= 2^53.
  std::int64_t integer(const Json& object, std::string_view name, std::int64_t most,
                       const std::string& where);
  std::int64_t integer(const Json& value, std::int64_t most, const std::string& where);
  std::string text(const Json& object, std::string_view name, const std::string& where);
  // Returns the items of the array. The array must have `least` to `most` items.
  const std::vector<Json>& items(const Json& object, std::string_view name, std::size_t least,
                                 std::size_t most, const std::string& where);
  // Checks the members "format" and "version" of a document.
  void format(const Json& root, std::string_view name, std::int64_t version,
              const std::string& where);
  // Keeps the caller's error unless there is an earlier one.
  void fail(const std::string& message);

 private:
  StatusCode code_;
  Status status_;
};

}  // namespace cox::io
