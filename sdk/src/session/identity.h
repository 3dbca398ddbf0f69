// Identity is the first record that ranks compare in Session::start: protocol, program and
// arguments must be equal. Sent as raw bytes in a layout that never changes, so that ranks of other
// versions can read the record. Pure except own_identity(); bytes of other ranks are hostile.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::detail {

// Raised whenever ranks of two versions of the SDK could misunderstand each other.
inline constexpr std::uint32_t kSdkProtocol = 1;

enum class OtherPrograms : std::uint32_t { refuse = 0, allow = 1 };

struct Identity {
  static constexpr std::uint32_t kMagic = 0x3149'5843;  // "CXI1"
  std::uint32_t magic = kMagic;
  std::uint32_t protocol = kSdkProtocol;
  OtherPrograms others = OtherPrograms::refuse;
  std::uint32_t arguments = 0;      // CRC-32 of the arguments that are not the SDK's
  std::array<char, 128> program{};  // the name of the executable, without its folder
  std::array<char, 112> build{};    // the linker's build id, as hex digits; may be empty
};
static_assert(sizeof(Identity) == 256);

// `arguments` are the program's, without those of the SDK.
Identity own_identity(OtherPrograms others, const std::vector<std::string>& arguments);

struct Compared {
  Status status;  // an error on all ranks: another protocol, or a program that is refused
  std::vector<std::string> warnings;  // another build, other arguments, on the first such rank
};
// Compares rank 0's identity with the others', by rank.
Compared compare(const std::vector<Identity>& ranks);

}  // namespace cox::detail
