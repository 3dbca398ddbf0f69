// CRC-32 (polynomial 0xEDB88320, as in zlib) over bytes. Detects torn and damaged frames, signals
// and journal records; it is no protection against forgery. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cox {

std::uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace cox
