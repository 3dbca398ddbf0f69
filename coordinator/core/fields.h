// Lists of the fields of structs. A struct lists its fields once, each with the field's number and
// name in Protocol Buffers. The list determines the struct's bytes (state_codec.h) and the text of
// the .proto file (proto_schema.h). Numbers ascend. A number is never used again and keeps its type
// and meaning. A struct that cannot have the member function has a free function list_fields(value)
// instead. A FieldList refers to its struct, which must outlive the list. Pure functions, any
// thread.
//
//   static auto fields(auto& self) { return message("RankPair", field(1, "rounds", self.rounds)); }
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "coordinator/core/units.h"

namespace cox {

// The largest enumerator of an enum that is a field:
//   template <> inline constexpr Stage kLargestOf<Stage> = Stage::roll_back;
template <class Enum>
inline constexpr std::nullptr_t kLargestOf = nullptr;

// The name of an enum in the .proto file. to_string() gives the names of the enumerators. The
// .proto file has a plain number for an enum without a name.
template <class Enum>
inline constexpr std::string_view kNameOf{};

// T is a reference to the field, or a view of it (at_most()).
template <class T>
struct NamedField {
  std::uint32_t number;
  std::string_view name;
  T value;
};

template <class T>
constexpr NamedField<T> field(std::uint32_t number, std::string_view name, T&& value) {
  return {number, name, std::forward<T>(value)};
}

template <class... Fields>
struct FieldList {
  std::string_view name;
  std::tuple<Fields...> fields;

  // Calls visit(field) for all fields, in the order of their numbers.
  template <class Visit>
  constexpr void for_each(Visit&& visit) {
    std::apply([&](auto&... each) { (visit(each), ...); }, fields);
  }
};

// The most fields of a struct for which a reader counts elements.
inline constexpr std::size_t kMostFields = 64;

template <class... Fields>
requires(sizeof...(Fields) <=
         kMostFields) constexpr FieldList<Fields...> message(std::string_view name,
                                                             Fields... fields) {
  return {name, {std::move(fields)...}};
}

template <class T, class Value>
concept Is = std::same_as<std::remove_const_t<T>, Value>;

template <class T>
concept HasFields = requires(T& value) {
  T::fields(value);
};

// Returns the list of a struct's fields.
template <class T>
auto message_of(T& value) {
  if constexpr (HasFields<std::remove_const_t<T>>) {
    return T::fields(value);
  } else {
    return list_fields(value);  // a type that is no field has no list_fields()
  }
}

template <class T>
inline constexpr bool is_strong_id = false;
template <class Tag, class Rep>
inline constexpr bool is_strong_id<StrongId<Tag, Rep>> = true;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T>
concept ScalarField = std::is_arithmetic_v<T> || std::is_enum_v<T> || is_strong_id<T>;

// ListOf describes how the codec uses a type as a list. A specialization has
//   Element
//   kExactly                  the number of elements; 0 = any number
//   most(list)                the limit of elements for a reader
//   size(list), at(list, i)
//   clear(list)               makes the list empty; only if kExactly is 0
//   put(list, place, element) adds an element after `place` others; false = refused
template <class T>
struct ListOf;

// A list of messages without a limit of its own has at most as many elements as a job can have
// ranks. Otherwise messages of two bytes could make a reader allocate memory without end.
template <class T>
inline constexpr std::size_t kMostElements = ScalarField<T> ? SIZE_MAX
                                                            : static_cast<std::size_t>(kMaxRanks);

template <class T>
requires(!std::same_as<T, bool>) struct ListOf<std::vector<T>> {
  using Element = T;
  static constexpr std::size_t kExactly = 0;
  static std::size_t most(const std::vector<T>&) { return kMostElements<T>; }
  static std::size_t size(const std::vector<T>& list) { return list.size(); }
  static const T& at(const std::vector<T>& list, std::size_t place) { return list[place]; }
  static void clear(std::vector<T>& list) { list.clear(); }
  static bool put(std::vector<T>& list, std::size_t, T&& element) {
    list.push_back(std::move(element));
    return true;
  }
};

template <class T, std::size_t N>
struct ListOf<std::array<T, N>> {
  using Element = T;
  static constexpr std::size_t kExactly = N;
  static std::size_t most(const std::array<T, N>&) { return N; }
  static std::size_t size(const std::array<T, N>&) { return N; }
  static const T& at(const std::array<T, N>& list, std::size_t place) { return list[place]; }
  static bool put(std::array<T, N>& list, std::size_t place, T&& element) {
    list[place] = std::move(element);
    return true;
  }
};

// AtMost is a view of a vector, with a limit of elements for readers.
template <class Vector>
struct AtMost {
  std::size_t most;
  Vector& values;
};

template <class Vector>
AtMost<Vector> at_most(std::size_t most, Vector& values) {
  return {most, values};
}

template <class Vector>
struct ListOf<AtMost<Vector>> : ListOf<std::remove_const_t<Vector>> {
  using Whole = ListOf<std::remove_const_t<Vector>>;
  using typename Whole::Element;
  static std::size_t most(const AtMost<Vector>& list) { return list.most; }
  static std::size_t size(const AtMost<Vector>& list) { return list.values.size(); }
  static const Element& at(const AtMost<Vector>& list, std::size_t place) {
    return list.values[place];
  }
  static void clear(const AtMost<Vector>& list) { list.values.clear(); }
  static bool put(const AtMost<Vector>& list, std::size_t place, Element&& element) {
    return Whole::put(list.values, place, std::move(element));
  }
};

// BytesOf describes how the codec uses a type as bytes. A specialization has of(value), which
// returns the bytes as a string or a view, and set(value, bytes), which returns false for bytes
// that it refuses.
template <class T>
struct BytesOf;

template <>
struct BytesOf<std::string> {
  static std::string_view of(const std::string& text) { return text; }
  static bool set(std::string& text, std::string_view bytes) {
    text = bytes;
    return true;
  }
};

// A fixed array of characters or bytes is written without the zeros at the array's end.
template <class T, std::size_t N>
requires(sizeof(T) == 1 &&
         (std::same_as<T, char> || std::same_as<T, std::byte>)) struct BytesOf<std::array<T, N>> {
  static std::string_view of(const std::array<T, N>& array) {
    std::size_t size = N;
    while (size > 0 && array[size - 1] == T{}) --size;
    return {reinterpret_cast<const char*>(array.data()), size};
  }
  static bool set(std::array<T, N>& array, std::string_view bytes) {
    if (bytes.size() > N) return false;
    array = {};
    for (std::size_t i = 0; i < bytes.size(); ++i) array[i] = static_cast<T>(bytes[i]);
    return true;
  }
};

template <class T>
concept BytesField = requires(const T& value) {
  BytesOf<T>::of(value);
};

template <class T>
concept ListField = !BytesField<T> && requires(const T& value) {
  ListOf<T>::size(value);
};

// Returns the list of an element's fields. An element that is itself a list becomes a message with
// one field.
template <class T>
auto message_of_element(T& element) {
  if constexpr (ListField<std::remove_const_t<T>>) {
    return message("", field(1, "values", element));
  } else {
    return message_of(element);
  }
}

}  // namespace cox
