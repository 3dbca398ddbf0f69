// Identity is what ranks compare first of all in Session::start: whether they speak one protocol
// and run one program with equal arguments. Travels as it is, in a layout that never changes, so
// that ranks of other versions understand it. Pure but for own_identity(); bytes of other ranks are
// hostile.
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
  std::uint32_t arguments = 0;      // CRC-32 of those that are not the SDK's
  std::array<char, 128> program{};  // the name of the executable, without its folder
  std::array<char, 112> build{};    // what its linker wrote into it, as hex digits; may be empty
};
static_assert(sizeof(Identity) == 256);

// `arguments`: of the program, without those of the SDK.
Identity own_identity(OtherPrograms others, const std::vector<std::string>& arguments);

struct Compared {
  Status status;  // an error on all ranks: another protocol, or a program that is refused
  std::vector<std::string> warnings;  // another build, other arguments: of the first such rank
};
// Compares rank 0's with the others', by rank.
Compared compare(const std::vector<Identity>& ranks);

}  // namespace cox::detail
