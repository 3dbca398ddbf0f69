#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/io/safetensors_header.h"
#include "metrics/command/commands.h"
#include "metrics/command/tensor_places.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBytesAtOnce = 1 << 20;  // a multiple of each element's size

// The tensors of one file by name, those of a save by "model.safetensors: NAME". A tensor's key is
// the same for any number of files.
using Places = std::map<std::string, TensorPlace>;

Result<Places> places_in(const fs::path& path) {
  auto groups = tensors_in(path);
  if (!groups.ok()) return groups.status();
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  Places places;
  for (auto& [file, group] : *groups) {
    for (auto& [name, place] : group.tensors)
      places[is_folder ? concat(file, ": ", name) : name] = std::move(place);
  }
  return places;
}

template <class Number>
Number load(const std::byte* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const double fraction = (bits & 0x3FF) / 1024.0;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, -14);
  if (exponent == 0x1F)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  return sign * std::ldexp(1 + fraction, exponent - 15);
}

// Returns the value of an element; nullopt for formats whose elements are compared as bytes.
std::optional<double> value_of(std::string_view dtype, const std::byte* at) {
  if (dtype == "F64") return load<double>(at);
  if (dtype == "F32") return load<float>(at);
  if (dtype == "F16") return half_value(load<std::uint16_t>(at));
  if (dtype == "BF16") return std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(at)} << 16);
  if (dtype == "I64") return static_cast<double>(load<std::int64_t>(at));
  if (dtype == "I32") return load<std::int32_t>(at);
  if (dtype == "I16") return load<std::int16_t>(at);
  if (dtype == "I8") return load<std::int8_t>(at);
  if (dtype == "U64") return static_cast<double>(load<std::uint64_t>(at));
  if (dtype == "U32") return load<std::uint32_t>(at);
  if (dtype == "U16") return load<std::uint16_t>(at);
  if (dtype == "U8" || dtype == "BOOL") return load<std::uint8_t>(at);
  return std::nullopt;
}

// Difference counts the elements in which two tensors of one shape and type differ.
struct Difference {
  std::uint64_t elements = 0;     // with different bytes
  std::uint64_t not_numbers = 0;  // different elements whose distance is NaN
  double largest = 0;             // largest distance of two values
  bool has_values = false;        // false: only the bytes are known
};

void compare_element(const io::SafetensorsEntry& entry, const std::byte* a, const std::byte* b,
                     Difference& found) {
  ++found.elements;
  const auto before = value_of(entry.dtype, a);
  const auto after = value_of(entry.dtype, b);
  if (!before || !after) return;
  found.has_values = true;
  const double distance = std::abs(*after - *before);
  if (std::isnan(distance)) {
    ++found.not_numbers;
  } else {
    found.largest = std::max(found.largest, distance);
  }
}

Result<Difference> compare(const TensorPlace& a, const TensorPlace& b) {
  const auto first = io::InputFile::open(a.file);
  if (!first.ok()) return first.status();
  const auto second = io::InputFile::open(b.file);
  if (!second.ok()) return second.status();
  const auto* dtype =
      std::ranges::find(io::kSafetensorsDtypes, a.entry.dtype, &io::SafetensorsDtype::name);
  const std::uint64_t bytes = a.entry.end - a.entry.begin;
  Difference found;
  std::vector<std::byte> mine, other;
  for (std::uint64_t at = 0; at < bytes; at += kBytesAtOnce) {
    const std::uint64_t count = std::min(kBytesAtOnce, bytes - at);
    mine.resize(count);
    other.resize(count);
    Status read = first->read_at(a.offset + at, mine.data(), count);
    if (read.ok()) read = second->read_at(b.offset + at, other.data(), count);
    if (!read.ok()) return read;
    if (mine == other) continue;
    for (std::uint64_t i = 0; i < count; i += dtype->bytes) {
      if (std::memcmp(&mine[i], &other[i], dtype->bytes) != 0)
        compare_element(a.entry, &mine[i], &other[i], found);
    }
  }
  return found;
}

std::string form_of(const io::SafetensorsEntry& entry) {
  std::string text = std::string(entry.dtype) + "[";
  for (std::size_t i = 0; i < entry.shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(entry.shape[i]);
  return text + "]";
}

void print_difference(const std::string& name, const TensorPlace& place, const Difference& found) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : place.entry.shape) elements *= static_cast<std::uint64_t>(size);
  fmt::print("{}  {}: {} of {} elements differ", printable(name), form_of(place.entry),
             found.elements, elements);
  if (found.has_values) fmt::print(", by at most {:.6g}", found.largest);
  if (found.not_numbers > 0) fmt::print(", {} of them not a number", found.not_numbers);
  fmt::print("\n");
}

}  // namespace

Result<Verdict> diff_saves(const std::string& before, const std::string& after) {
  const auto a = places_in(before);
  if (!a.ok()) return a.status();
  const auto b = places_in(after);
  if (!b.ok()) return b.status();
  std::size_t same = 0;
  std::size_t other = 0;
  for (const auto& [name, place] : *a) {
    const auto match = b->find(name);
    if (match == b->end()) {
      fmt::print("{}  only in {}\n", printable(name), printable(before));
    } else if (form_of(place.entry) != form_of(match->second.entry)) {
      fmt::print("{}  {} and {}\n", printable(name), form_of(place.entry),
                 form_of(match->second.entry));
    } else {
      const auto found = compare(place, match->second);
      if (!found.ok()) return found.status();
      if (found->elements == 0 && ++same > 0) continue;
      print_difference(name, place, *found);
    }
    ++other;
  }
  for (const auto& [name, place] : *b) {
    if (a->contains(name)) continue;
    fmt::print("{}  only in {}\n", printable(name), printable(after));
    ++other;
  }
  fmt::print("{} tensors are equal, {} are not\n", same, other);
  return other == 0 ? Verdict::yes : Verdict::no;
}

}  // namespace cox::tools
