#include "coordinator/io/content_hash.h"

#include <charconv>
#include <span>
#include <string_view>

#include "coordinator/core/text.h"
#include "coordinator/io/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cox::io {
namespace {

constexpr std::uint64_t kReadAtOnce = std::uint64_t{1} << 20;

}  // namespace

struct ContentHash::State {
  XXH3_state_t xxh;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh);
}

ContentHash::~ContentHash() = default;

void ContentHash::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
}

std::uint64_t ContentHash::value() const {
  return XXH3_64bits_digest(&state_->xxh);
}

std::uint64_t content_hash(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t content_hash(std::string_view text) {
  return content_hash(std::as_bytes(std::span(text)));
}

Result<FileContent> content_of(const std::filesystem::path& file) {
  const Result<InputFile> input = InputFile::open(file);
  if (!input.ok()) return input.status();
  ContentHash hash;
  const Status read = input->each_piece(kReadAtOnce, [&hash](std::string_view piece) {
    hash.add(std::as_bytes(std::span(piece)));
    return ok_status();
  });
  if (!read.ok()) return read.with_context(file.string());
  return FileContent{input->size_bytes(), hash.value()};
}

std::string to_hex(std::uint64_t hash) {
  char digits[16];
  char* const end = std::to_chars(digits, digits + sizeof digits, hash, 16).ptr;
  const auto missing = static_cast<std::size_t>(digits + sizeof digits - end);
  return std::string(missing, '0').append(digits, end);
}

Result<std::uint64_t> hash_from_hex(std::string_view text) {
  std::uint64_t hash = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, hash, 16);
  const bool is_whole = parsed.ec == std::errc{} && parsed.ptr == end && to_hex(hash) == text;
  if (is_whole) return hash;
  return data_loss("expected a hash of 16 hexadecimal digits, found \"",
                   std::string(text.substr(0, 40)), "\"");
}

}  // namespace cox::io
