// ProtoSchema generates the text of a .proto file from the lists of fields (fields.h) that also
// drive the codec of states. wire/control.proto is generated with ProtoSchema, and a test compares
// both. A program prints the message of its own policy's state like this:
//
//   ProtoSchema schema;
//   schema.add<SpeedSharesState>();
//   std::puts(schema.text().c_str());
//
// A value; one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "coordinator/core/fields.h"
#include "coordinator/core/state_codec.h"

namespace cox {

class ProtoSchema {
 public:
  // Adds the message of a struct with a list of fields, and the messages of the struct's parts.
  // Returns the name of the message.
  template <class T>
  std::string add() {
    T value{};
    return add(value);
  }
  template <class T>
  std::string add(T& value) {
    auto fields = message_of(value);
    std::string lines;
    fields.for_each(
        [&](auto& each) { lines += line(type_of(each.value), each.name, each.number); });
    if constexpr (State<T>) lines += line("uint32", "version", kVersionNumber);
    return define("message", std::string(fields.name), lines);
  }

  // Returns the added messages and enums, each after the ones that it uses.
  const std::string& text() const { return text_; }
  // Returns the names that were added with different contents.
  const std::vector<std::string>& conflicts() const { return conflicts_; }

 private:
  std::string define(std::string_view kind, const std::string& name, const std::string& lines);
  static std::string line(std::string_view type, std::string_view name, std::uint64_t number);
  // Returns "RECOMPUTE_1" for "recompute 1".
  static std::string enumerator(std::string_view enum_name, std::string_view name);

  template <class T>
  std::string type_of(T& value) {
    if constexpr (is_optional<T>) {
      return "optional " + one<typename T::value_type>();
    } else if constexpr (ListField<T>) {
      return "repeated " + one<typename ListOf<T>::Element>();
    } else if constexpr (ScalarField<T> || BytesField<T>) {
      return one<T>();
    } else {
      return add(value);
    }
  }

  template <class T>
  std::string one() {
    if constexpr (BytesField<T>) {
      return "bytes";
    } else if constexpr (is_strong_id<T>) {
      return one<typename T::rep>();
    } else if constexpr (std::is_enum_v<T>) {
      if constexpr (kNameOf<T>.empty()) {
        return "uint32";
      } else {
        return add_enum<T>();
      }
    } else if constexpr (std::is_same_v<T, bool>) {
      return "bool";
    } else if constexpr (std::is_floating_point_v<T>) {
      return sizeof(T) == 4 ? "float" : "double";
    } else if constexpr (std::is_arithmetic_v<T>) {
      return std::string(std::is_unsigned_v<T> ? "uint" : "sint") + (sizeof(T) > 4 ? "64" : "32");
    } else if constexpr (ListField<T>) {
      return add_list<T>();
    } else {
      return add<T>();
    }
  }

  // A list within a list becomes a message, for example "DoubleList".
  template <class T>
  std::string add_list() {
    std::string name = one<typename ListOf<T>::Element>() + "List";
    name[0] = static_cast<char>(name[0] >= 'a' ? name[0] - 'a' + 'A' : name[0]);
    return define("message", name,
                  line("repeated " + one<typename ListOf<T>::Element>(), "values", 1));
  }

  // Enumerators have the names of to_string(). to_string() gives a number without a name the name
  // of the largest possible number, which no enum with gaps defines.
  template <class T>
  std::string add_enum() {
    constexpr std::uint64_t kMost = 1024;
    std::string lines;
    std::vector<std::string> names;
    const auto largest = static_cast<std::uint64_t>(kLargestOf<T>);
    for (std::uint64_t number = 0; number <= std::min(largest, kMost); ++number) {
      const std::string name = enumerator(kNameOf<T>, to_string(static_cast<T>(number)));
      const bool is_known =
          std::ranges::find(names, name) == names.end() &&
          (largest < 0xFF || to_string(static_cast<T>(number)) != to_string(kLargestOf<T>));
      if (is_known) lines += line("", name, number);
      names.push_back(name);
    }
    return define("enum", std::string(kNameOf<T>), lines);
  }

  std::string text_;
  std::map<std::string, std::string> defined_;
  std::vector<std::string> conflicts_;
};

}  // namespace cox
