// Codec for every struct that lists its fields (fields.h). The bytes are the wire format of
// Protocol Buffers. Journals, saved states and the states of policies use the codec. The codec
// writes through ByteWriter, because the core depends on no library; tests compare the bytes with
// protoc's classes.
//
//   std::string bytes = encode_state(state);  // a struct with fields() and kVersion
//   Result<GuardState> read = decode_state<GuardState>(bytes);
//
// Pure functions, any thread. docs/journal.md describes the bytes and lists those that are refused.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "coordinator/core/bytes.h"
#include "coordinator/core/fields.h"
#include "coordinator/core/status.h"

namespace cox {
namespace state_codec {

enum class WireType : std::uint8_t { varint = 0, fixed64 = 1, length = 2, fixed32 = 5 };

struct Tag {
  std::uint32_t number = 0;
  WireType type = WireType::varint;
};

// Maps small numbers of either sign to small unsigned numbers.
constexpr std::uint64_t zigzag(std::int64_t value) {
  return static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63);
}
constexpr std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1 ^ (~(value & 1) + 1));
}

template <ScalarField T>
constexpr WireType wire_type() {
  if (std::is_same_v<T, float>) return WireType::fixed32;
  return std::is_same_v<T, double> ? WireType::fixed64 : WireType::varint;
}

// --- writing ----------------------------------------------------------------------------------

// Returns the varint's number for the value. REQUIRES: T is no float.
template <ScalarField T>
constexpr std::uint64_t varint_of(T value) {
  if constexpr (is_strong_id<T>) {
    return varint_of(value.value());
  } else if constexpr (std::is_enum_v<T> || std::is_unsigned_v<T>) {
    return static_cast<std::uint64_t>(value);
  } else {
    return zigzag(value);
  }
}

// Compares bits, so -0 is no zero and gets written.
template <ScalarField T>
bool is_zero(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<std::uint32_t>(value) == 0;
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<std::uint64_t>(value) == 0;
  } else {
    return varint_of(value) == 0;
  }
}

template <ScalarField T>
void write_scalar(ByteWriter& out, T value) {
  if constexpr (std::is_same_v<T, float>) {
    out.f32(value);
  } else if constexpr (std::is_same_v<T, double>) {
    out.f64(value);
  } else {
    out.varint(varint_of(value));
  }
}

inline void write_tag(ByteWriter& out, std::uint32_t number, WireType type) {
  out.varint(std::uint64_t{number} << 3 | static_cast<std::uint64_t>(type));
}

// Default says whether a field with the default value is left out.
enum class Default : std::uint8_t { omitted, written };

template <class T>
void write_field(ByteWriter& out, std::uint32_t number, const T& value,
                 Default zero = Default::omitted);

template <class Listed>
void write_fields(ByteWriter& out, Listed fields) {
  fields.for_each([&](auto& each) { write_field(out, each.number, each.value); });
}

// Appends a field with its tag. Returns the size of the value.
template <class T>
std::size_t write_one(ByteWriter& out, std::uint32_t number, const T& value) {
  write_tag(out, number, WireType::length);
  const std::size_t start = out.size();
  if constexpr (BytesField<T>) {
    out.append(BytesOf<T>::of(value));
  } else {
    write_fields(out, message_of_element(value));
  }
  return out.insert_length(start);
}

template <ListField T>
void write_packed(ByteWriter& out, std::uint32_t number, const T& list) {
  using Of = ListOf<T>;
  const std::size_t size = Of::size(list);
  bool is_default = true;
  for (std::size_t i = 0; i < size && is_default; ++i)
    is_default = Of::kExactly > 0 && is_zero(Of::at(list, i));
  if (is_default) return;
  write_tag(out, number, WireType::length);
  const std::size_t start = out.size();
  for (std::size_t i = 0; i < size; ++i) write_scalar(out, Of::at(list, i));
  out.insert_length(start);
}

// Leaves out a list of a fixed number of elements if all elements are empty.
template <ListField T>
void write_list(ByteWriter& out, std::uint32_t number, const T& list) {
  using Of = ListOf<T>;
  const std::size_t before = out.size();
  std::size_t contents = 0;
  for (std::size_t i = 0; i < Of::size(list); ++i)
    contents += write_one(out, number, Of::at(list, i));
  if (Of::kExactly > 0 && contents == 0) out.cut(before);
}

template <class T>
void write_field(ByteWriter& out, std::uint32_t number, const T& value, Default zero) {
  if constexpr (is_optional<T>) {
    if (value) write_field(out, number, *value, Default::written);
  } else if constexpr (ScalarField<T>) {
    if (zero == Default::omitted && is_zero(value)) return;
    write_tag(out, number, wire_type<T>());
    write_scalar(out, value);
  } else if constexpr (ListField<T>) {
    if constexpr (ScalarField<typename ListOf<T>::Element>) {
      write_packed(out, number, value);
    } else {
      write_list(out, number, value);
    }
  } else {
    const std::size_t before = out.size();
    const std::size_t size = write_one(out, number, value);
    if (zero == Default::omitted && size == 0) out.cut(before);
  }
}

// --- reading ----------------------------------------------------------------------------------

// Sets a value to the meaning of an empty message: all numbers are zero, even if the struct's own
// initializers differ.
template <class T>
void clear(T& value) {
  if constexpr (is_optional<T>) {
    value.reset();
  } else if constexpr (ScalarField<T>) {
    value = T{};
  } else if constexpr (BytesField<T>) {
    BytesOf<T>::set(value, {});
  } else if constexpr (ListField<T>) {
    using Of = ListOf<T>;
    if constexpr (Of::kExactly == 0) {
      Of::clear(value);
    } else {
      for (std::size_t i = 0; i < Of::kExactly; ++i) {
        typename Of::Element element{};
        clear(element);
        Of::put(value, i, std::move(element));
      }
    }
  } else {
    message_of(value).for_each([](auto& each) { clear(each.value); });
  }
}

inline Tag read_tag(ByteReader& in) {
  constexpr std::uint64_t kMostNumber = (std::uint64_t{1} << 29) - 1;
  const std::uint64_t tag = in.varint();
  if (tag >> 3 == 0 || tag >> 3 > kMostNumber) in.fail();
  if (in.failed()) return {};
  return {static_cast<std::uint32_t>(tag >> 3), static_cast<WireType>(tag & 7)};
}

// Returns a reader of the next length-delimited value.
inline ByteReader read_length(ByteReader& in) {
  return ByteReader(in.take(in.varint()));
}

// Refuses groups, which proto3 does not have.
inline void skip(ByteReader& in, WireType type) {
  switch (type) {
    case WireType::varint:
      in.varint();
      return;
    case WireType::fixed64:
      in.u64();
      return;
    case WireType::length:
      read_length(in);
      return;
    case WireType::fixed32:
      in.u32();
      return;
  }
  in.fail();
}

template <class T>
T read_integer(ByteReader& in) {
  const std::uint64_t bits = in.varint();
  if constexpr (std::is_unsigned_v<T>) {
    if (bits > std::numeric_limits<T>::max()) in.fail();
    return in.failed() ? T{0} : static_cast<T>(bits);
  } else {
    const std::int64_t number = unzigzag(bits);
    const bool fits =
        number >= std::numeric_limits<T>::min() && number <= std::numeric_limits<T>::max();
    if (!fits) in.fail();
    return in.failed() ? T{0} : static_cast<T>(number);
  }
}

template <class T>
T read_enum(ByteReader& in) {
  static_assert(!std::is_same_v<decltype(kLargestOf<T>), const std::nullptr_t>,
                "specialise cox::kLargestOf for this enum");
  const std::uint64_t number = in.varint();
  if (number > static_cast<std::uint64_t>(kLargestOf<T>)) in.fail();
  return in.failed() ? T{} : static_cast<T>(number);
}

template <ScalarField T>
T read_scalar(ByteReader& in) {
  if constexpr (std::is_same_v<T, float>) {
    return in.f32();
  } else if constexpr (std::is_same_v<T, double>) {
    return in.f64();
  } else if constexpr (std::is_enum_v<T>) {
    return read_enum<T>(in);
  } else if constexpr (is_strong_id<T>) {
    return T(read_integer<typename T::rep>(in));
  } else {
    return read_integer<T>(in);
  }
}

// Counts has the number of elements read so far for each list, by the place of the list's field.
using Counts = std::array<std::uint32_t, kMostFields>;

template <class Listed>
void read_fields(ByteReader& in, Listed fields);

// Reads the bytes of a string or a message. Merges a message's fields that occur twice.
template <class T>
void read_one(ByteReader& in, T& value) {
  ByteReader body = read_length(in);
  if constexpr (BytesField<T>) {
    const auto bytes = body.take(body.left());
    if (!BytesOf<T>::set(value, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}))
      in.fail();
  } else {
    read_fields(body, message_of_element(value));
    if (body.failed()) in.fail();
  }
}

// Limits count what is there before, too, because a message that is there twice is merged.
template <ListField T>
void put(ByteReader& in, T& list, std::uint32_t& count, typename ListOf<T>::Element element) {
  using Of = ListOf<T>;
  const std::size_t before = Of::kExactly > 0 ? count : Of::size(list);
  const bool is_put =
      !in.failed() && before < Of::most(list) && Of::put(list, count, std::move(element));
  is_put ? static_cast<void>(++count) : in.fail();
}

template <ListField T>
void read_list(ByteReader& in, WireType type, T& list, std::uint32_t& count) {
  using Element = typename ListOf<T>::Element;
  if constexpr (!ScalarField<Element>) {
    Element element{};
    clear(element);
    type == WireType::length ? read_one(in, element) : in.fail();
    put(in, list, count, std::move(element));
  } else if (type == wire_type<Element>()) {
    put(in, list, count, read_scalar<Element>(in));
  } else {
    ByteReader packed = type == WireType::length ? read_length(in) : ByteReader({});
    if (type != WireType::length) in.fail();
    while (!packed.at_end()) put(packed, list, count, read_scalar<Element>(packed));
    if (packed.failed()) in.fail();
  }
}

template <class T>
void read_field(ByteReader& in, WireType type, T& value, std::uint32_t& count) {
  if constexpr (is_optional<T>) {
    if (!value) clear(value.emplace());
    read_field(in, type, *value, count);
  } else if constexpr (ScalarField<T>) {
    type == wire_type<T>() ? static_cast<void>(value = read_scalar<T>(in)) : in.fail();
  } else if constexpr (ListField<T>) {
    read_list(in, type, value, count);
  } else {
    type == WireType::length ? read_one(in, value) : in.fail();
  }
}

// Fails if a list of a fixed number of elements has some of its elements, but not all.
template <class T>
void check_count(ByteReader& in, const T&, std::uint32_t count) {
  if constexpr (ListField<T>) {
    constexpr std::size_t kExactly = ListOf<T>::kExactly;
    if (kExactly > 0 && count != 0 && count != kExactly) in.fail();
  }
}

// Returns the next tag; number 0 at the end of the bytes.
inline Tag next_tag(ByteReader& in) {
  return in.at_end() ? Tag{} : read_tag(in);
}

// Reads fields until the end of the bytes. Skips unknown fields. One pass over the list reads all
// fields that are in the list's order.
template <class Listed>
void read_fields(ByteReader& in, Listed fields) {
  Counts counts{};
  Tag tag = next_tag(in);
  while (!in.failed() && tag.number != 0) {
    std::size_t place = 0;
    bool is_known = false;
    fields.for_each([&](auto& each) {
      for (; tag.number == each.number; tag = next_tag(in)) {
        is_known = true;
        read_field(in, tag.type, each.value, counts[place]);
      }
      ++place;
    });
    if (is_known) continue;
    skip(in, tag.type);
    tag = next_tag(in);
  }
  std::size_t place = 0;
  fields.for_each([&](auto& each) { check_count(in, each.value, counts[place++]); });
}

}  // namespace state_codec

// Append the fields of a value to bytes, or read them back into a value. read_message() returns
// false for damaged bytes.
template <class T>
void write_message(ByteWriter& out, const T& value) {
  state_codec::write_fields(out, message_of(value));
}

template <class T>
[[nodiscard]] bool read_message(std::string_view bytes, T& value) {
  ByteReader in(std::as_bytes(std::span(bytes)));
  state_codec::clear(value);
  state_codec::read_fields(in, message_of(value));
  return in.done();
}

template <class T>
concept State = HasFields<T> && std::is_default_constructible_v<T> &&
    std::is_convertible_v<decltype(T::kVersion), std::uint32_t>;

// The field number of a state's version. The version is the last field, so truncated bytes have
// none.
inline constexpr std::uint32_t kVersionNumber = 1000;

template <State T>
std::string encode_state(const T& state) {
  ByteWriter out;
  write_message(out, state);
  state_codec::write_field(out, kVersionNumber, std::uint32_t{T::kVersion});
  return std::string(out.text());
}

// Returns the version of a state; 0 if the bytes have none.
std::uint64_t version_of_state(std::string_view bytes);

// Returns failed_precondition for another version, data_loss for damaged bytes.
template <State T>
Result<T> decode_state(std::string_view bytes) {
  const std::uint64_t version = version_of_state(bytes);
  if (version == 0) return data_loss("state: expected fields and a version, found other bytes");
  if (version != T::kVersion)
    return failed_precondition("state: expected version ", T::kVersion, ", found ", version);
  T state{};
  if (!read_message(bytes, state))
    return data_loss("state: expected the fields of its version, found other bytes");
  if constexpr (requires { state.is_sane(); }) {
    if (!state.is_sane()) return data_loss("state: a value is out of range");
  }
  return state;
}

}  // namespace cox
