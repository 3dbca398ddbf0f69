// Frame: the fixed-size piece in which plans travel from the coordinator to all ranks, by MPI or
// mailbox. A plan is one head frame and as many continuation frames as the plan needs.
// docs/wire-format.md has the table of bytes. Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "coordinator/core/plan.h"
#include "coordinator/core/status.h"
#include "coordinator/wire/plan_codec.h"

namespace cox::wire {

inline constexpr std::uint8_t kMaskVersion = 5;
inline constexpr std::size_t kFrameBytes = 160;
inline constexpr std::size_t kHeadHeaderBytes = 32;
inline constexpr std::size_t kContinuationHeaderBytes = 24;
inline constexpr std::size_t kHeadPayloadBytes = kFrameBytes - kHeadHeaderBytes;
inline constexpr std::size_t kContinuationPayloadBytes = kFrameBytes - kContinuationHeaderBytes;
inline constexpr std::size_t kMaxContinuations = 65535;

struct Frame {
  std::array<std::byte, kFrameBytes> bytes{};
  std::uint16_t size = 0;  // bytes in use; the rest is zero

  std::span<const std::byte> used() const { return std::span(bytes).first(size); }
  friend bool operator==(const Frame&, const Frame&) = default;
};

// Values are part of the format: never renumber.
enum class FrameKind : std::uint8_t {
  unspecified = 0,
  full = 1,
  delta = 2,
  // 3 was a round without a new plan.
  continuation = 4,
};

// FrameHeader holds the header fields of a frame. Fields that the kind does not carry are zero.
struct FrameHeader {
  FrameKind kind = FrameKind::unspecified;
  std::uint8_t base_distance = 0;  // number - number of the base; 0 = full plan
  PlanId id{};
  RoundId earliest_round{};          // full and delta
  std::uint16_t blocks = 0;          // full and delta
  BlockBits bits = BlockBits::four;  // full and delta
  std::uint16_t index = 0;           // continuation: 0 .. continuations - 1
  std::uint16_t continuations = 0;
  std::uint32_t checksum = 0;
};

struct FrameView {
  FrameHeader header;
  std::span<const std::byte> payload;  // borrows the bytes that open_frame() read
};

// Returns a frame with its checksum. REQUIRES: the payload fits the kind.
Frame seal_frame(const FrameHeader& header, std::span<const std::byte> payload);

// Parses a frame from another process. `bytes` may be longer than the frame, for transports with a
// fixed size; the rest must be zero. Returns data_loss if the bytes are not a frame,
// failed_precondition if the frame has another version.
Result<FrameView> open_frame(std::span<const std::byte> bytes);

}  // namespace cox::wire
