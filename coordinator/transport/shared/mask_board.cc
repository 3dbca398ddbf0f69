#include "coordinator/transport/shared/mask_board.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>

#include "coordinator/transport/shared/segment.h"

namespace cox::transport {
namespace {

constexpr std::uint64_t kMaskBoardMagic = 0x3144'5242'4B53'4D43;  // "CMSKBRD1"
constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::size_t kMaxCapacity = std::size_t{1} << 24;
constexpr int kMaskTries = 16;

// A frame as words: the size in the first four bytes, then the frame's bytes, then zeros.
constexpr std::size_t frame_words(std::size_t bytes) {
  return (sizeof(std::uint32_t) + bytes + kWord - 1) / kWord;
}

}  // namespace

struct MaskBoard::Header {
  std::atomic<std::uint64_t> magic;  // written last by format()
  std::atomic<std::uint64_t> capacity_words;
  alignas(kLine) std::atomic<std::uint64_t> sequence;
  alignas(kLine) std::atomic<std::uint64_t> used_words;
  // capacity_words atomics follow.

  std::atomic<std::uint64_t>* words() {
    return std::launder(reinterpret_cast<std::atomic<std::uint64_t>*>(this + 1));
  }
};

MaskBoard::MaskBoard(std::byte* memory, std::size_t capacity_words)
    : header_(std::launder(reinterpret_cast<Header*>(memory))), capacity_words_(capacity_words) {}

std::size_t MaskBoard::bytes_needed(std::size_t capacity_bytes) {
  return sizeof(Header) + (capacity_bytes + kWord - 1) / kWord * kWord;
}

Result<MaskBoard> MaskBoard::format(std::span<std::byte> memory, std::size_t capacity_bytes) {
  if (capacity_bytes > kMaxCapacity || memory.size() < bytes_needed(capacity_bytes) ||
      reinterpret_cast<std::uintptr_t>(memory.data()) % kLine != 0) {
    return invalid_argument("mask board: expected a capacity of at most ", kMaxCapacity,
                            " bytes and ", bytes_needed(capacity_bytes),
                            " bytes of aligned memory, found ", memory.size());
  }
  Header* header = new (memory.data()) Header{};
  const std::size_t words = (capacity_bytes + kWord - 1) / kWord;
  header->capacity_words = words;
  for (std::size_t i = 0; i < words; ++i) new (header->words() + i) std::atomic<std::uint64_t>(0);
  header->magic.store(kMaskBoardMagic, std::memory_order_release);
  return MaskBoard(memory.data(), words);
}

Result<MaskBoard> MaskBoard::attach(std::span<std::byte> memory) {
  if (memory.size() < sizeof(Header)) {
    return data_loss("mask board: expected at least ", sizeof(Header), " bytes, found ",
                     memory.size());
  }
  const auto* header = std::launder(reinterpret_cast<const Header*>(memory.data()));
  const bool is_board = header->magic.load(std::memory_order_acquire) == kMaskBoardMagic;
  const std::uint64_t words = header->capacity_words.load(std::memory_order_relaxed);
  if (!is_board || words > (memory.size() - sizeof(Header)) / kWord) {
    return data_loss(
        "mask board: expected a board of this version, found other bytes; all ranks must run the "
        "same build and attach after the board was formatted");
  }
  return MaskBoard(memory.data(), words);
}

Status MaskBoard::publish(std::span<const std::span<const std::byte>> frames) {
  std::vector<std::uint64_t> words;
  for (const auto& frame : frames) {
    const auto size = static_cast<std::uint32_t>(frame.size());
    const std::size_t start = words.size();
    words.resize(start + frame_words(frame.size()));
    auto* bytes = reinterpret_cast<std::byte*>(words.data() + start);
    std::memcpy(bytes, &size, sizeof size);
    std::ranges::copy(frame, bytes + sizeof size);
  }
  if (words.size() > capacity_words_) {
    return invalid_argument("mask board: expected frames of at most ", capacity_words_ * kWord,
                            " bytes, found ", words.size() * kWord);
  }
  // An odd number is damage, because the only writer is here.
  const std::uint64_t sequence = header_->sequence.load(std::memory_order_relaxed) & ~1ull;
  header_->sequence.store(sequence + 1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < words.size(); ++i)
    header_->words()[i].store(words[i], std::memory_order_release);
  header_->used_words.store(words.size(), std::memory_order_release);
  header_->sequence.store(sequence + 2, std::memory_order_release);
  return ok_status();
}

bool MaskReader::poll() {
  for (int i = 0; i < kMaskTries; ++i) {
    const std::uint64_t sequence = board_.header_->sequence.load(std::memory_order_acquire);
    if (sequence == seen_) return false;
    if (sequence % 2 == 0 && copy(sequence)) {
      seen_ = sequence;
      copy_.swap(trying_);
      split_copy();
      return true;
    }
  }
  return false;
}

bool MaskReader::copy(std::uint64_t sequence) {
  MaskBoard::Header& header = *board_.header_;
  words_ = std::min<std::size_t>(header.used_words.load(std::memory_order_acquire),
                                 board_.capacity_words_);
  if (trying_.size() < words_) trying_.resize(words_);
  for (std::size_t i = 0; i < words_; ++i) {
    trying_[i] = header.words()[i].load(std::memory_order_acquire);
  }
  return header.sequence.load(std::memory_order_relaxed) == sequence;
}

void MaskReader::split_copy() {
  frames_.clear();
  const auto* bytes = reinterpret_cast<const std::byte*>(copy_.data());
  for (std::size_t i = 0; i < words_;) {
    std::uint32_t size = 0;
    std::memcpy(&size, bytes + i * kWord, sizeof size);
    if (frame_words(size) > words_ - i) return;  // damage; earlier frames stay
    frames_.emplace_back(bytes + i * kWord + sizeof size, size);
    i += frame_words(size);
  }
}

}  // namespace cox::transport
