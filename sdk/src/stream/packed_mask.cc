#include "sdk/src/stream/packed_mask.h"

#include <ATen/Parallel.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

// The values packed into one word; the unit of the loops below, which compilers vectorise.
constexpr std::int64_t kGroup = 64;
constexpr std::int64_t kGroupsOfTask = 1024;  // for at::parallel_for

struct TwoValues {
  std::uint64_t zero = 0, one = 0;
};

// Gathers the lowest bits of eight bytes, each 0 or 1.
std::uint64_t gathered(const std::uint8_t* flags) {
  std::uint64_t eight = 0;
  std::memcpy(&eight, flags, sizeof(eight));
  return eight * 0x0102040810204080ULL >> 56;
}

// Spreads eight bits into the lowest bits of eight bytes.
std::uint64_t spread(std::uint64_t byte) {
  const std::uint64_t copies = byte * 0x0101010101010101ULL & 0x8040201008040201ULL;
  return (copies + 0x7F7F7F7F7F7F7F7FULL) >> 7 & 0x0101010101010101ULL;
}

// Returns whether every value of a group is `zero` or `one`.
template <class T>
bool pack_group(const T* from, T zero, T one, std::uint8_t* to) {
  std::uint8_t flags[kGroup];
  std::uint8_t third = 0;
  for (std::int64_t i = 0; i < kGroup; ++i) {
    const auto flag = static_cast<std::uint8_t>(from[i] != zero);
    flags[i] = flag;
    third |= flag & static_cast<std::uint8_t>(from[i] != one);
  }
  for (std::int64_t b = 0; b < kGroup / 8; ++b)
    to[b] = static_cast<std::uint8_t>(gathered(flags + 8 * b));
  return third == 0;
}

template <class T>
void unpack_group(const std::uint8_t* from, T zero, T one, T* to) {
  std::uint8_t flags[kGroup];
  for (std::int64_t b = 0; b < kGroup / 8; ++b) {
    const std::uint64_t eight = spread(from[b]);
    std::memcpy(flags + 8 * b, &eight, sizeof(eight));
  }
  const T change = zero ^ one;
  for (std::int64_t i = 0; i < kGroup; ++i) {
    const T all = static_cast<T>(T{0} - T{flags[i]});
    to[i] = zero ^ (change & all);
  }
}

// Calls `whole` for each whole group, and `part` with the number of values left over.
template <class Whole, class Part>
void for_each_group(std::int64_t count, const Whole& whole, const Part& part) {
  at::parallel_for(0, count / kGroup, kGroupsOfTask, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t g = first; g < end; ++g) whole(g);
  });
  if (count % kGroup != 0) part(count / kGroup, static_cast<std::size_t>(count % kGroup));
}

// Returns the first value, and the first different one if there is any.
template <class T>
TwoValues first_two(const T* from, std::int64_t count) {
  const T* const other = std::find_if(from + 1, from + count, [&](T it) { return it != *from; });
  return {*from, other == from + count ? *from : *other};
}

template <class T>
std::optional<TwoValues> pack_values(const void* data, std::int64_t count, std::uint8_t* to) {
  const T* const from = static_cast<const T*>(data);
  const TwoValues values = first_two(from, count);
  const T zero = static_cast<T>(values.zero), one = static_cast<T>(values.one);
  std::atomic<bool> has_third{false};
  const auto pack = [&](std::int64_t group, const T* of) {
    if (has_third.load(std::memory_order_relaxed)) return;
    if (!pack_group(of, zero, one, to + group * kGroup / 8)) has_third = true;
  };
  for_each_group(
      count, [&](std::int64_t group) { pack(group, from + group * kGroup); },
      [&](std::int64_t group, std::size_t left) {
        std::array<T, kGroup> rest;
        rest.fill(zero);
        std::copy_n(from + group * kGroup, left, rest.begin());
        pack(group, rest.data());
      });
  return has_third ? std::nullopt : std::optional(values);
}

template <class T>
void unpack_values(const std::uint8_t* from, std::int64_t count, TwoValues values, void* data) {
  T* const to = static_cast<T*>(data);
  const T zero = static_cast<T>(values.zero), one = static_cast<T>(values.one);
  for_each_group(
      count,
      [&](std::int64_t group) {
        unpack_group(from + group * kGroup / 8, zero, one, to + group * kGroup);
      },
      [&](std::int64_t group, std::size_t left) {
        std::array<T, kGroup> rest;
        unpack_group(from + group * kGroup / 8, zero, one, rest.data());
        std::copy_n(rest.begin(), left, to + group * kGroup);
      });
}

// Calls `use` with a number as wide as an element; returns whether there is one.
template <class Use>
bool with_width(std::size_t bytes, const Use& use) {
  if (bytes == 1) use(std::uint8_t{});
  if (bytes == 2) use(std::uint16_t{});
  if (bytes == 4) use(std::uint32_t{});
  if (bytes == 8) use(std::uint64_t{});
  return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

}  // namespace

std::optional<PackedMask> PackedMask::pack(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_impl(tensor);
  if (storage == nullptr || tensor.layout() != at::kStrided || !tensor.is_cpu()) return {};
  PackedMask mask;
  mask.type_ = tensor.scalar_type();
  mask.count_ = static_cast<std::int64_t>(storage->nbytes() / tensor.element_size());
  if (mask.count_ == 0) return {};
  mask.bits_ = at::empty({(mask.count_ + kGroup - 1) / kGroup * kGroup / 8}, at::kByte);
  std::optional<TwoValues> values;
  with_width(tensor.element_size(), [&](auto width) {
    values = pack_values<decltype(width)>(storage->data(), mask.count_,
                                          mask.bits_.mutable_data_ptr<std::uint8_t>());
  });
  if (!values) return {};
  mask.zero_ = values->zero;
  mask.one_ = values->one;
  return mask.sharing(tensor);
}

std::optional<PackedMask> PackedMask::sharing(const at::Tensor& tensor) const {
  if (tensor.scalar_type() != type_) return {};
  PackedMask mask = *this;
  mask.sizes_ = tensor.sizes();
  mask.strides_ = tensor.strides();
  mask.offset_ = tensor.storage_offset();
  mask.counter_ = tensor.unsafeGetTensorImpl()->version_counter();
  return mask;
}

at::Tensor PackedMask::values() const {
  at::Tensor made = at::empty({count_}, type_);
  with_width(made.element_size(), [&](auto width) {
    unpack_values<decltype(width)>(bits_.const_data_ptr<std::uint8_t>(), count_, {zero_, one_},
                                   made.mutable_data_ptr());
  });
  return made;
}

at::Tensor PackedMask::tensor() const {
  return values().as_strided(sizes_, strides_, offset_);
}

std::int64_t PackedMask::bytes() const {
  return static_cast<std::int64_t>(bits_.nbytes());
}

}  // namespace cox::detail
