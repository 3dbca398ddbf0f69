#include "coordinator/wire/frame.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "coordinator/core/bytes.h"
#include "coordinator/core/hash.h"

namespace cox::wire {
namespace {

constexpr std::size_t kChecksumOffset = 4;
constexpr std::size_t kChecksumBytes = 4;
constexpr std::uint16_t kEightBits = 0x8000;  // a bit of the field with the number of blocks

void copy_into(Frame& frame, std::size_t offset, std::span<const std::byte> from) {
  std::copy(from.begin(), from.end(), frame.bytes.begin() + static_cast<std::ptrdiff_t>(offset));
}

// Computes the checksum of a frame, with the checksum's own field taken as zero.
std::uint32_t checksum_of(std::span<const std::byte> bytes) {
  std::array<std::byte, kFrameBytes> copy{};
  std::copy(bytes.begin(), bytes.end(), copy.begin());
  std::fill_n(copy.begin() + kChecksumOffset, kChecksumBytes, std::byte{0});
  return crc32(std::span(copy).first(bytes.size()));
}

std::size_t header_bytes(FrameKind kind) {
  if (kind == FrameKind::full || kind == FrameKind::delta) return kHeadHeaderBytes;
  return kind == FrameKind::continuation ? kContinuationHeaderBytes : 0;
}

Status damaged(const auto&... what) {
  return data_loss("mask frame: ", what..., "; ask for the full plan");
}

Status check_fields(const FrameHeader& header) {
  if (header.kind == FrameKind::continuation) {
    if (header.index < header.continuations) return ok_status();
    return damaged("expected an index below ", header.continuations, ", found ", header.index);
  }
  if (header.blocks > kMaxBlocks)
    return damaged("expected at most ", kMaxBlocks, " blocks, found ", header.blocks);
  if ((header.kind == FrameKind::delta) != (header.base_distance != 0))
    return damaged("kind and distance to the base plan do not fit together");
  if (header.base_distance > header.id.number) return damaged("the base plan is before number 0");
  return ok_status();
}

FrameHeader read_header(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  FrameHeader header;
  in.u8();
  header.kind = static_cast<FrameKind>(in.u8());
  in.u8();
  header.base_distance = in.u8();
  header.checksum = in.u32();
  header.id.incarnation = in.u32();
  const std::uint32_t counts = in.u32();
  const auto low = static_cast<std::uint16_t>(counts);
  if (header.kind == FrameKind::continuation) {
    header.index = low;
  } else {
    header.blocks = static_cast<std::uint16_t>(low & ~kEightBits);
    if ((low & kEightBits) != 0) header.bits = BlockBits::eight;
  }
  header.continuations = static_cast<std::uint16_t>(counts >> 16);
  header.id.number = in.u64();
  if (header.kind != FrameKind::continuation) header.earliest_round = RoundId(in.u64());
  return header;
}

// Returns the length of the frame that starts at the first byte, or the reason why the bytes are no
// frame.
Result<std::size_t> frame_size(std::span<const std::byte> bytes) {
  if (bytes.size() < kContinuationHeaderBytes || bytes.size() > kFrameBytes)
    return damaged("expected 24 to 160 bytes, found ", bytes.size());
  const auto version = std::to_integer<unsigned>(bytes[0]);
  if (version != kMaskVersion)
    return failed_precondition("mask frame: expected version ", kMaskVersion, ", found ", version,
                               "; run the same Coxswain on all ranks");
  const std::size_t least = header_bytes(static_cast<FrameKind>(bytes[1]));
  if (least == 0) return damaged("unknown kind ", std::to_integer<unsigned>(bytes[1]));
  const auto size = std::to_integer<std::size_t>(bytes[2]);
  if (size < least || size > bytes.size())
    return damaged("expected ", least, " to ", bytes.size(), " bytes, its header says ", size);
  return size;
}

}  // namespace

Frame seal_frame(const FrameHeader& header, std::span<const std::byte> payload) {
  const std::size_t start = header_bytes(header.kind);
  assert(start > 0 && payload.size() <= kFrameBytes - start);
  const bool continues = header.kind == FrameKind::continuation;
  const auto blocks = static_cast<std::uint16_t>(
      header.bits == BlockBits::eight ? header.blocks | kEightBits : header.blocks);
  Frame frame;
  frame.size = static_cast<std::uint16_t>(start + payload.size());
  ByteWriter out;
  out.u8(kMaskVersion);
  out.u8(static_cast<std::uint8_t>(header.kind));
  out.u8(static_cast<std::uint8_t>(frame.size));
  out.u8(header.base_distance);
  out.u32(0);
  out.u32(header.id.incarnation);
  out.u32((continues ? header.index : blocks) | static_cast<std::uint32_t>(header.continuations)
                                                    << 16);
  out.u64(header.id.number);
  if (!continues) out.u64(header.earliest_round.value());
  copy_into(frame, 0, out.bytes());
  copy_into(frame, start, payload);
  ByteWriter checksum;
  checksum.u32(checksum_of(frame.used()));
  copy_into(frame, kChecksumOffset, checksum.bytes());
  return frame;
}

Result<FrameView> open_frame(std::span<const std::byte> bytes) {
  const Result<std::size_t> size = frame_size(bytes);
  if (!size.ok()) return size.status();
  const auto padding = bytes.subspan(*size);
  if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; }))
    return damaged("found bytes after its end");
  const auto frame = bytes.first(*size);
  const FrameHeader header = read_header(frame);
  const FrameView view{header, frame.subspan(header_bytes(header.kind))};
  if (checksum_of(frame) != header.checksum) return damaged("its checksum does not fit its bytes");
  if (Status status = check_fields(header); !status.ok()) return status;
  return view;
}

}  // namespace cox::wire
