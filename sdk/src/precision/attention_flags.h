// AttentionFlags: which kernels scaled_dot_product_attention may choose, torch's process-wide flags
// as a value: read, put in force, compare.
#pragma once

#include <cstdint>

namespace cox::detail {

struct AttentionFlags {
  bool flash = true;
  bool flash3 = false;
  bool efficient = true;
  bool math = true;
  bool cudnn = true;
  bool overrideable = true;
  friend bool operator==(const AttentionFlags&, const AttentionFlags&) = default;
};

AttentionFlags attention_flags();
// Writes only when something differs.
void put_in_force(const AttentionFlags& wanted);

// One bit each, in the order of the members.
std::uint8_t to_bits(const AttentionFlags& flags);
AttentionFlags flags_from_bits(std::uint8_t bits);

}  // namespace cox::detail
