#include "sdk/src/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>

#include "coordinator/core/json.h"

namespace cox::detail {
namespace {

struct DtypeSize {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<DtypeSize, 15> kDtypes = {{{"BOOL", 1},
                                                {"U8", 1},
                                                {"I8", 1},
                                                {"F8_E4M3", 1},
                                                {"F8_E5M2", 1},
                                                {"U16", 2},
                                                {"I16", 2},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"U32", 4},
                                                {"I32", 4},
                                                {"F32", 4},
                                                {"U64", 8},
                                                {"I64", 8},
                                                {"F64", 8}}};

std::string known_dtypes() {
  std::string out;
  for (const DtypeSize& dtype : kDtypes) out += (out.empty() ? "" : ", ") + std::string(dtype.name);
  return out;
}

std::string tensor_text(const std::string& name) {
  return "tensor \"" + (name.size() > 200 ? name.substr(0, 200) + "..." : name) + "\"";
}

void read_shape(JsonReader& reader, TensorEntry& entry) {
  for (reader.begin_array(); reader.next_item();) {
    const std::uint64_t size = reader.read_uint64();
    if (size > INT64_MAX) reader.fail("a dimension beyond 63 bits");
    if (entry.shape.size() == kMaxDimensions) reader.fail("more than 64 dimensions");
    entry.shape.push_back(static_cast<std::int64_t>(size));
  }
}

void read_offsets(JsonReader& reader, TensorEntry& entry) {
  std::array<std::uint64_t, 2> range{};
  std::size_t count = 0;
  for (reader.begin_array(); reader.next_item(); ++count) {
    const std::uint64_t value = reader.read_uint64();
    if (count < 2) range[count] = value;
  }
  if (reader.ok() && count != 2) {
    reader.fail("data_offsets: expected 2 numbers, found " + std::to_string(count));
  }
  entry.begin = range[0];
  entry.end = range[1];
}

TensorEntry read_entry(JsonReader& reader, const std::string& name) {
  TensorEntry entry{.name = name, .dtype = {}, .shape = {}};
  std::set<std::string> seen;
  std::string key;
  for (reader.begin_object(); reader.next_member(key);) {
    if (!seen.insert(key).second) reader.fail(tensor_text(name) + ": \"" + key + "\" occurs twice");
    if (key == "dtype") {
      entry.dtype = reader.read_string();
    } else if (key == "shape") {
      read_shape(reader, entry);
    } else if (key == "data_offsets") {
      read_offsets(reader, entry);
    } else {
      reader.fail(tensor_text(name) + ": expected dtype, shape and data_offsets, found \"" +
                  key.substr(0, 40) + "\"");
    }
  }
  if (reader.ok() && seen.size() != 3) {
    reader.fail(tensor_text(name) + ": one of dtype, shape, data_offsets is missing");
  }
  return entry;
}

void read_metadata(JsonReader& reader, std::map<std::string, std::string>& metadata) {
  std::string key;
  for (reader.begin_object(); reader.next_member(key);) {
    if (!metadata.emplace(key, reader.read_string()).second) {
      reader.fail("__metadata__: \"" + key.substr(0, 200) + "\" occurs twice");
    }
  }
}

// Range, dtype and shape of one tensor agree with each other.
Status check_entry(const TensorEntry& entry) {
  const std::string who = tensor_text(entry.name) + ": ";
  const std::uint64_t element = dtype_bytes(entry.dtype);
  if (element == 0) {
    return data_loss(who + "expected a dtype out of " + known_dtypes() + ", found \"" +
                     entry.dtype.substr(0, 40) + "\"");
  }
  std::uint64_t bytes = element;
  for (const std::int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes) ||
        bytes > INT64_MAX) {
      return data_loss(who + "the shape needs more than 2^63 bytes");
    }
  }
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    return data_loss(who + "expected " + std::to_string(bytes) + " bytes for its shape, found [" +
                     std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")");
  }
  if (entry.begin % element != 0) {
    return data_loss(who + "expected a start that is a multiple of " + std::to_string(element) +
                     ", found " + std::to_string(entry.begin));
  }
  return ok_status();
}

Status check_tiling(const std::vector<TensorEntry>& entries, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != covered) {
      return data_loss(tensor_text(entry.name) + ": expected its data to start at byte " +
                       std::to_string(covered) + ", found " + std::to_string(entry.begin) +
                       (entry.begin > covered ? " (a gap)" : " (an overlap)"));
    }
    covered = entry.end;
  }
  if (covered == data_bytes) return ok_status();
  return data_loss("expected " + std::to_string(covered) +
                   " bytes of data behind the header, found " + std::to_string(data_bytes) +
                   (covered > data_bytes ? " (the file is cut short)" : " (surplus bytes)"));
}

Status check_names(const std::vector<TensorEntry>& entries) {
  std::set<std::string_view> seen;
  for (const TensorEntry& entry : entries) {
    if (!seen.insert(entry.name).second) {
      return data_loss(tensor_text(entry.name) + " occurs twice");
    }
  }
  return ok_status();
}

Status check_header(SafetensorsHeader& header, std::uint64_t data_bytes) {
  for (const TensorEntry& entry : header.entries) {
    if (Status status = check_entry(entry); !status.ok()) return status;
  }
  if (Status status = check_names(header.entries); !status.ok()) return status;
  std::sort(header.entries.begin(), header.entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  return check_tiling(header.entries, data_bytes);
}

}  // namespace

std::uint64_t dtype_bytes(std::string_view dtype) {
  for (const DtypeSize& known : kDtypes) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

Status check_header_length(std::uint64_t header_bytes, std::uint64_t file_bytes) {
  if (file_bytes < 8) {
    return data_loss("expected at least 8 bytes of header length, found a file of " +
                     std::to_string(file_bytes));
  }
  if (header_bytes > kMaxHeaderBytes) {
    return data_loss("expected a header of at most " + std::to_string(kMaxHeaderBytes) +
                     " bytes, found a length of " + std::to_string(header_bytes));
  }
  if (header_bytes > file_bytes - 8) {
    return data_loss("expected a header of " + std::to_string(header_bytes) + " bytes, found " +
                     std::to_string(file_bytes - 8) + " bytes behind its length");
  }
  return ok_status();
}

Result<SafetensorsHeader> parse_header(std::string_view json, std::uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') {
    return data_loss("expected a header that starts with '{'");
  }
  SafetensorsHeader header;
  JsonReader reader(json);
  std::string name;
  bool has_metadata = false;
  for (reader.begin_object(); reader.next_member(name);) {
    if (name != "__metadata__") {
      header.entries.push_back(read_entry(reader, name));
    } else if (has_metadata) {
      reader.fail("__metadata__ occurs twice");
    } else {
      has_metadata = true;
      read_metadata(reader, header.metadata);
    }
  }
  reader.finish();
  if (!reader.ok()) return reader.status();
  if (Status status = check_header(header, data_bytes); !status.ok()) return status;
  return header;
}

std::string format_header(const SafetensorsHeader& header) {
  std::string out = "{";
  if (!header.metadata.empty()) {
    out += "\"__metadata__\":{";
    for (const auto& [key, value] : header.metadata) {
      out += (out.back() == '{' ? "" : ",") + json_quote(key) + ":" + json_quote(value);
    }
    out += "}";
  }
  for (const TensorEntry& entry : header.entries) {
    out += (out.size() == 1 ? "" : ",") + json_quote(entry.name) + ":{\"dtype\":\"" + entry.dtype +
           "\",\"shape\":[";
    for (std::size_t i = 0; i < entry.shape.size(); ++i) {
      out += (i == 0 ? "" : ",") + std::to_string(entry.shape[i]);
    }
    out += "],\"data_offsets\":[" + std::to_string(entry.begin) + "," + std::to_string(entry.end) +
           "]}";
  }
  out += "}";
  out.append((8 - out.size() % 8) % 8, ' ');
  return out;
}

}  // namespace cox::detail
