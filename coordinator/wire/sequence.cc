#include "coordinator/wire/sequence.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace cox::wire {
namespace {

using Values = std::span<const std::uint32_t>;

ByteWriter as_runs(Values values) {
  ByteWriter out;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t end = i + 1;
    while (end < values.size() && values[end] == values[i]) ++end;
    out.varint(end - i);
    out.varint(values[i]);
    i = end;
  }
  return out;
}

ByteWriter as_packed(Values values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const int width = std::bit_width(*most - *least);
  ByteWriter out;
  out.varint(*least);
  out.u8(static_cast<std::uint8_t>(width));
  std::uint64_t pending = 0;
  int bits = 0;
  for (const std::uint32_t value : values) {
    pending |= static_cast<std::uint64_t>(value - *least) << bits;
    for (bits += width; bits >= 8; bits -= 8) {
      out.u8(static_cast<std::uint8_t>(pending));
      pending >>= 8;
    }
  }
  if (bits > 0) out.u8(static_cast<std::uint8_t>(pending));
  return out;
}

// The smallest p with values[i] == values[i - p] for all i >= p, from the longest proper border.
std::size_t period_of(Values values) {
  std::vector<std::uint32_t> border(values.size(), 0);
  for (std::size_t i = 1; i < values.size(); ++i) {
    std::uint32_t length = border[i - 1];
    while (length > 0 && values[i] != values[length]) length = border[length - 1];
    border[i] = values[i] == values[length] ? length + 1 : 0;
  }
  return values.size() - border.back();
}

ByteWriter as_repeated(Values values) {
  const std::size_t period = period_of(values);
  ByteWriter out;
  out.varint(period);
  for (const std::uint32_t value : values.first(period)) out.varint(value);
  return out;
}

std::uint32_t read_value(ByteReader& in) {
  const std::uint64_t value = in.varint();
  if (value > std::numeric_limits<std::uint32_t>::max()) in.fail();
  return static_cast<std::uint32_t>(value);
}

void read_runs(ByteReader& in, std::span<std::uint32_t> out) {
  for (std::size_t i = 0; i < out.size() && !in.failed();) {
    const std::uint64_t length = in.varint();
    const std::uint32_t value = read_value(in);
    if (length == 0 || length > out.size() - i) return in.fail();
    std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(i), length, value);
    i += static_cast<std::size_t>(length);
  }
}

void read_packed(ByteReader& in, std::span<std::uint32_t> out) {
  const std::uint64_t least = read_value(in);
  const unsigned width = in.u8();
  if (in.failed() || width > 32) return in.fail();
  ByteReader packed(in.take((std::uint64_t{out.size()} * width + 7) / 8));
  std::uint64_t pending = 0;
  unsigned bits = 0;
  for (std::uint32_t& value : out) {
    for (; bits < width; bits += 8) pending |= static_cast<std::uint64_t>(packed.u8()) << bits;
    const std::uint64_t sum = least + (pending & ((std::uint64_t{1} << width) - 1));
    if (in.failed() || sum > std::numeric_limits<std::uint32_t>::max()) return in.fail();
    value = static_cast<std::uint32_t>(sum);
    pending >>= width;
    bits -= width;
  }
}

void read_repeated(ByteReader& in, std::span<std::uint32_t> out) {
  const std::uint64_t period = in.varint();
  if (period == 0 || period > out.size()) return in.fail();
  for (std::size_t i = 0; i < out.size() && !in.failed(); ++i) {
    out[i] = i < period ? read_value(in) : out[i - static_cast<std::size_t>(period)];
  }
}

}  // namespace

void write_sequence(ByteWriter& out, Values values) {
  out.varint(values.size());
  if (values.empty()) return;
  ByteWriter best = as_runs(values);
  SequenceForm form = SequenceForm::runs;
  const auto consider = [&](SequenceForm other, ByteWriter written) {
    if (written.size() >= best.size()) return;
    best = std::move(written);
    form = other;
  };
  consider(SequenceForm::packed, as_packed(values));
  consider(SequenceForm::repeated, as_repeated(values));
  out.u8(static_cast<std::uint8_t>(form));
  out.append(best.bytes());
}

std::optional<std::vector<std::uint32_t>> read_sequence(ByteReader& in, std::size_t max_count) {
  const std::uint64_t count = in.varint();
  if (in.failed() || count > max_count) return std::nullopt;
  std::vector<std::uint32_t> values(static_cast<std::size_t>(count));
  if (values.empty()) return values;
  switch (static_cast<SequenceForm>(in.u8())) {
    case SequenceForm::runs:
      read_runs(in, values);
      break;
    case SequenceForm::packed:
      read_packed(in, values);
      break;
    case SequenceForm::repeated:
      read_repeated(in, values);
      break;
    default:
      in.fail();
  }
  if (in.failed()) return std::nullopt;
  return values;
}

}  // namespace cox::wire
