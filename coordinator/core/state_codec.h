// One codec for every struct that lists its fields: what policies remember, for the journal and for
// saves. The struct says what it consists of, the codec says how that looks in bytes.
//
//   struct GuardState {
//     static constexpr std::uint32_t kVersion = 1;  // goes up when a field changes its meaning
//     std::uint32_t streak = 0;
//     std::vector<double> level;  // one per rank
//     static auto fields(auto& self) { return std::tie(self.streak, self.level); }
//   };
//   std::string bytes = encode_state(state);
//   Result<GuardState> read = decode_state<GuardState>(bytes);
//
// A field is an integer, bool, float or double, a strong id, an enum with a stated largest value
// (specialise kLargestOf), a std::string, or a std::optional, std::vector or std::array
// of fields, or a struct with fields() (only the outermost one has a version). A struct that does
// not list its fields itself may have a list_fields(value, visit), and any type a write(out, value)
// and a read(in, value) of its own; both are found by argument-dependent lookup.
//
// Bytes: version and length as variable-length integers, then the fields in their order. Unsigned
// integers and enums are variable-length, signed ones too after zigzag; floats are their bits in
// little endian; bool and the presence of an optional are a byte 0 or 1; strings and vectors
// begin with their count. Bytes are hostile: a count never allocates more than the bytes that are
// left can hold, every value is checked against the range of its type, and everything must be used.
// A struct with `bool is_sane() const` is refused when that says false; what needs more than the
// state itself (the world's size) is for the owner to check. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "coordinator/core/bytes.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"

namespace cox {

// The largest enumerator of an enum that is a field:
//   template <> inline constexpr Stage kLargestOf<Stage> = Stage::roll_back;
template <class Enum>
inline constexpr std::nullptr_t kLargestOf = nullptr;

namespace state_codec {

template <class T>
concept HasFields = requires(T& value) {
  T::fields(value);
};

// Calls visit(field, ...) with all fields of the value.
template <class T, class Visit>
void visit_fields(T& value, const Visit& visit) {
  if constexpr (HasFields<std::remove_const_t<T>>) {
    std::apply(visit, T::fields(value));
  } else {
    list_fields(value, visit);  // a type that the codec does not know has none
  }
}

template <class T>
inline constexpr bool is_strong_id = false;
template <class Tag, class Rep>
inline constexpr bool is_strong_id<StrongId<Tag, Rep>> = true;

template <class T>
inline constexpr bool is_array = false;
template <class T, std::size_t N>
inline constexpr bool is_array<std::array<T, N>> = true;

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = !std::is_same_v<T, bool>;

// Small numbers of either sign become small unsigned ones.
constexpr std::uint64_t zigzag(std::int64_t value) {
  return static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63);
}
constexpr std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1 ^ (~(value & 1) + 1));
}

template <class T>
void write(ByteWriter& out, const T& value);

struct FieldWriter {
  template <class... Fields>
  void operator()(const Fields&... fields) const {
    (write(out, fields), ...);
  }
  ByteWriter& out;
};

template <class T>
void write(ByteWriter& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    out.u8(value ? 1 : 0);
  } else if constexpr (std::is_enum_v<T>) {
    out.varint(static_cast<std::uint64_t>(value));
  } else if constexpr (std::is_unsigned_v<T>) {
    out.varint(value);
  } else if constexpr (std::is_integral_v<T>) {
    out.varint(zigzag(value));
  } else if constexpr (std::is_same_v<T, float>) {
    out.f32(value);
  } else if constexpr (std::is_same_v<T, double>) {
    out.f64(value);
  } else if constexpr (is_strong_id<T>) {
    write(out, value.value());
  } else if constexpr (is_optional<T>) {
    write(out, value.has_value());
    if (value) write(out, *value);
  } else if constexpr (is_array<T>) {
    for (const auto& each : value) write(out, each);
  } else if constexpr (std::is_same_v<T, std::string>) {
    out.varint(value.size());
    out.append(value);
  } else if constexpr (is_vector<T>) {
    out.varint(value.size());
    for (const auto& each : value) write(out, each);
  } else {
    visit_fields(value, FieldWriter{out});
  }
}

template <class T>
void read(ByteReader& in, T& value);

struct FieldReader {
  template <class... Fields>
  void operator()(Fields&&... fields) const {
    (read(in, fields), ...);
  }
  ByteReader& in;
};

inline bool read_bool(ByteReader& in) {
  const std::uint8_t byte = in.u8();
  if (byte > 1) in.fail();
  return byte == 1;
}

template <class T>
T read_enum(ByteReader& in) {
  static_assert(!std::is_same_v<decltype(kLargestOf<T>), const std::nullptr_t>,
                "specialise cox::kLargestOf for this enum");
  const std::uint64_t number = in.varint();
  if (number > static_cast<std::uint64_t>(kLargestOf<T>)) in.fail();
  return in.failed() ? T{} : static_cast<T>(number);
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

// Every element takes at least a byte, so a count above the number of bytes left is damage.
inline std::uint64_t read_count(ByteReader& in) {
  const std::uint64_t count = in.varint();
  if (count > in.left()) in.fail();
  return in.failed() ? 0 : count;
}

template <class T>
void read_vector(ByteReader& in, std::vector<T>& values) {
  values.clear();
  for (std::uint64_t count = read_count(in); count > 0 && !in.failed(); --count) {
    const std::size_t left = in.left();
    read(in, values.emplace_back());
    if (in.left() == left) in.fail();
  }
}

inline void read_string(ByteReader& in, std::string& value) {
  const auto bytes = in.take(in.varint());
  value.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <class T>
void read(ByteReader& in, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = read_bool(in);
  } else if constexpr (std::is_enum_v<T>) {
    value = read_enum<T>(in);
  } else if constexpr (std::is_integral_v<T>) {
    value = read_integer<T>(in);
  } else if constexpr (std::is_same_v<T, float>) {
    value = in.f32();
  } else if constexpr (std::is_same_v<T, double>) {
    value = in.f64();
  } else if constexpr (is_strong_id<T>) {
    value = T(read_integer<typename T::rep>(in));
  } else if constexpr (is_optional<T>) {
    value.reset();
    if (read_bool(in)) read(in, value.emplace());
  } else if constexpr (is_array<T>) {
    for (auto& each : value) read(in, each);
  } else if constexpr (std::is_same_v<T, std::string>) {
    read_string(in, value);
  } else if constexpr (is_vector<T>) {
    read_vector(in, value);
  } else {
    visit_fields(value, FieldReader{in});
  }
}

}  // namespace state_codec

template <class T>
concept State = state_codec::HasFields<T> && std::is_default_constructible_v<T> &&
    std::is_convertible_v<decltype(T::kVersion), std::uint32_t>;

template <State T>
std::string encode_state(const T& state) {
  ByteWriter body;
  state_codec::write(body, state);
  ByteWriter out;
  out.varint(T::kVersion);
  out.varint(body.size());
  out.append(body.bytes());
  return std::string(out.text());
}

// Returns failed_precondition for another version, data_loss for damaged bytes.
template <State T>
Result<T> decode_state(std::string_view bytes) {
  ByteReader in(std::as_bytes(std::span(bytes)));
  const std::uint64_t version = in.varint();
  if (!in.failed() && version != T::kVersion) {
    return failed_precondition("state: expected version ", T::kVersion, ", found ", version);
  }
  if (in.varint() != in.left()) in.fail();
  T state{};
  state_codec::read(in, state);
  if (!in.done()) return data_loss("state: expected the fields of its version, found other bytes");
  if constexpr (requires { state.is_sane(); }) {
    if (!state.is_sane()) return data_loss("state: a value is out of range");
  }
  return state;
}

}  // namespace cox
