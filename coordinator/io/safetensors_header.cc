#include "coordinator/io/safetensors_header.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"

namespace cox::io {
namespace {

// Returns null for an unknown name.
const SafetensorsDtype* find_dtype(std::string_view name) {
  const auto found = std::ranges::find(kSafetensorsDtypes, name, &SafetensorsDtype::name);
  return found == kSafetensorsDtypes.end() ? nullptr : &*found;
}

std::string known_dtypes() {
  std::string out;
  for (const SafetensorsDtype& dtype : kSafetensorsDtypes)
    out.append(out.empty() ? "" : ", ").append(dtype.name);
  return out;
}

std::string tensor_text(const std::string& name) {
  return concat("tensor \"", name.size() > 200 ? concat(name.substr(0, 200), "...") : name, "\"");
}

std::string shortened(std::string_view text) {
  return std::string(text.substr(0, 40));
}

// Builds a header from the pieces of its JSON. Each container except the outermost has a Place,
// which says what may stand inside.
class HeaderReader : public JsonEvents {
 public:
  Status begin(JsonKind kind) override {
    const bool is_object = kind == JsonKind::object;
    if (place_ == Place::start && is_object) return enter(Place::top);
    if (place_ == Place::top && is_object) return begin_member();
    if (place_ == Place::tensor && !is_object && key_ == "shape") return enter(Place::shape);
    if (place_ == Place::tensor && !is_object && key_ == "data_offsets")
      return enter(Place::offsets);
    return unexpected(to_string(kind));
  }

  Status name(std::string_view name) override {
    if (place_ == Place::tensor) {
      if (name != "dtype" && name != "shape" && name != "data_offsets")
        return data_loss(who(), ": expected dtype, shape and data_offsets, found \"",
                         shortened(name), "\"");
      ++keys_;
    }
    (place_ == Place::top ? member_ : key_) = name;
    return ok_status();
  }

  Status value(const JsonScalar& scalar) override {
    const bool is_text = scalar.kind == JsonKind::string;
    if (place_ == Place::metadata && is_text) {
      header_.metadata.emplace(key_, scalar.string);
    } else if (place_ == Place::tensor && is_text && key_ == "dtype") {
      return dtype(scalar.string);
    } else if (place_ == Place::shape || place_ == Place::offsets) {
      return number(scalar);
    } else {
      return unexpected(to_string(scalar.kind));
    }
    return ok_status();
  }

  Status end() override {
    const Place left = place_;
    place_ = left == Place::shape || left == Place::offsets ? Place::tensor : Place::top;
    if (left == Place::offsets && offsets_ != 2)
      return data_loss(who(), ": data_offsets: expected 2 numbers, found ", offsets_);
    if (left == Place::tensor && keys_ != 3)
      return data_loss(
          who(), ": expected dtype, shape and data_offsets, found at least one of them missing");
    return ok_status();
  }

  SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class Place { start, top, metadata, tensor, shape, offsets };

  std::string who() const { return tensor_text(member_); }

  Status enter(Place place) {
    place_ = place;
    return ok_status();
  }

  Status begin_member() {
    keys_ = offsets_ = 0;
    if (member_ == "__metadata__") return enter(Place::metadata);
    if (header_.entries.size() == kMaxSafetensorsTensors)
      return data_loss("expected at most ", kMaxSafetensorsTensors,
                       " tensors in a file, found more; split it into several files");
    header_.entries.push_back({.name = member_, .dtype = {}, .shape = {}});
    return enter(Place::tensor);
  }

  Status dtype(std::string_view name) {
    const SafetensorsDtype* known = find_dtype(name);
    if (known == nullptr)
      return data_loss(who(), ": expected a dtype out of ", known_dtypes(), ", found \"",
                       shortened(name), "\"");
    header_.entries.back().dtype = known->name;
    return ok_status();
  }

  Status number(const JsonScalar& scalar) {
    SafetensorsEntry& entry = header_.entries.back();
    if (!scalar.whole || *scalar.whole > INT64_MAX)
      return data_loss(who(), ": ", key_, ": expected a whole number below 2^63");
    if (place_ == Place::offsets) {
      if (offsets_ < 2) (offsets_ == 0 ? entry.begin : entry.end) = *scalar.whole;
      ++offsets_;
      return ok_status();
    }
    if (entry.shape.size() == kMaxSafetensorsDimensions)
      return data_loss(who(), ": expected at most ", kMaxSafetensorsDimensions,
                       " dimensions, found more");
    entry.shape.push_back(static_cast<std::int64_t>(*scalar.whole));
    return ok_status();
  }

  Status unexpected(std::string_view found) const {
    std::string expected = "a tensor's object";
    if (place_ == Place::metadata) expected = "a text";
    if (place_ == Place::shape || place_ == Place::offsets) expected = "a whole number";
    if (place_ == Place::tensor) expected = key_ == "dtype" ? "a text" : "an array";
    const std::string where = place_ == Place::tensor ? concat(who(), ": ", key_) : who();
    return data_loss(where, ": expected ", expected, ", found ", found);
  }

  SafetensorsHeader header_;
  Place place_ = Place::start;
  std::string member_;       // member of the outermost object
  std::string key_;          // member of a tensor or the metadata
  std::size_t keys_ = 0;     // members of the tensor so far
  std::size_t offsets_ = 0;  // offsets of the tensor so far
};

// Checks that a tensor's range, dtype and shape agree.
Status check_entry(const SafetensorsEntry& entry) {
  const std::string who = concat(tensor_text(entry.name), ": ");
  const std::uint64_t element = find_dtype(entry.dtype)->bytes;
  std::uint64_t bytes = element;
  for (const std::int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes) ||
        bytes > INT64_MAX) {
      return data_loss(who, "expected a shape of less than 2^63 bytes, found a larger one");
    }
  }
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    return data_loss(who, "expected ", bytes, " bytes for its shape, found [", entry.begin, ", ",
                     entry.end, ")");
  }
  if (entry.begin % element != 0) {
    return data_loss(who, "expected a start that is a multiple of ", element, ", found ",
                     entry.begin);
  }
  return ok_status();
}

Status check_tiling(const std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != covered) {
      return data_loss(tensor_text(entry.name), ": expected its data to start at byte ", covered,
                       ", found ", entry.begin,
                       entry.begin > covered ? " (a gap)" : " (an overlap)");
    }
    covered = entry.end;
  }
  if (covered == data_bytes) return ok_status();
  return data_loss("expected ", covered, " bytes of data behind the header, found ", data_bytes,
                   covered > data_bytes ? " (the file is cut short)" : " (surplus bytes)");
}

Status check_header(SafetensorsHeader& header, std::uint64_t data_bytes) {
  for (const SafetensorsEntry& entry : header.entries) {
    if (Status status = check_entry(entry); !status.ok()) return status;
  }
  std::ranges::sort(header.entries, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  return check_tiling(header.entries, data_bytes);
}

}  // namespace

Status check_safetensors_length(std::uint64_t header_bytes, std::uint64_t file_bytes) {
  if (file_bytes < 8) {
    return data_loss("expected at least 8 bytes of header length, found a file of ", file_bytes);
  }
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return data_loss("expected a header of at most ", kMaxSafetensorsHeaderBytes,
                     " bytes, found a length of ", header_bytes);
  }
  if (header_bytes > file_bytes - 8) {
    return data_loss("expected a header of ", header_bytes, " bytes, found ", file_bytes - 8,
                     " bytes behind its length");
  }
  return ok_status();
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json,
                                                   std::uint64_t data_bytes) {
  if (json.empty() || json.front() != '{')
    return data_loss("expected a header that starts with '{'");
  HeaderReader reader;
  if (Status status = read_json(json, reader); !status.ok()) return status;
  SafetensorsHeader header = reader.take();
  if (Status status = check_header(header, data_bytes); !status.ok()) return status;
  return header;
}

Result<PlacedHeader> read_safetensors_header(const InputFile& file) {
  std::uint64_t length = 0;
  if (file.size_bytes() >= sizeof length) {
    if (Status read = file.read_at(0, &length, sizeof length); !read.ok()) return read;
  }
  if (Status fits = check_safetensors_length(length, file.size_bytes()); !fits.ok()) return fits;
  std::string json(length, '\0');
  if (Status read = file.read_at(sizeof length, json.data(), length); !read.ok()) return read;
  const std::uint64_t data_offset = sizeof length + length;
  auto header = parse_safetensors_header(json, file.size_bytes() - data_offset);
  if (!header.ok()) return header.status();
  return PlacedHeader{*std::move(header), data_offset};
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  JsonWriter json;
  json.begin_object();
  if (!header.metadata.empty()) {
    json.key("__metadata__").begin_object();
    for (const auto& [key, value] : header.metadata) json.field(key, value);
    json.end_object();
  }
  for (const SafetensorsEntry& entry : header.entries) {
    json.key(entry.name).begin_object().field("dtype", entry.dtype).key("shape").begin_array();
    for (const std::int64_t size : entry.shape) json.value(size);
    json.end_array().key("data_offsets").begin_array().value(entry.begin).value(entry.end);
    json.end_array().end_object();
  }
  std::string out = json.end_object().take();
  out.append((8 - out.size() % 8) % 8, ' ');
  return out;
}

std::string format_safetensors_index(const std::map<std::string, std::string>& file_of,
                                     std::uint64_t bytes) {
  JsonWriter json;
  json.begin_object().new_line(2).key("metadata").begin_object().field("total_size", bytes);
  json.end_object().new_line(2).key("weight_map").begin_object();
  for (const auto& [tensor, file] : file_of) json.new_line(4).field(tensor, file);
  return json.end_object().end_object().take() + "\n";
}

}  // namespace cox::io
