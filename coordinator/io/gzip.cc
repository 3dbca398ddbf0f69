#include "coordinator/io/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <utility>

namespace cox::io {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // zlib counts in unsigned int
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

// Returns the pieces of a file. The file must outlive them.
NextBytes pieces_of(const InputFile& file) {
  return [&file, at = std::uint64_t{0}, piece = std::string()]() mutable {
    piece.resize(std::min<std::uint64_t>(kPieceBytes, file.size_bytes() - at));
    const Status read = file.read_at(at, piece.data(), piece.size());
    at += piece.size();
    return read.ok() ? Result<std::string_view>(piece) : Result<std::string_view>(read);
  };
}

Status use_unpacked(const InputFile& file, std::uint64_t max_bytes,
                    const std::function<Status(const NextBytes& next)>& use) {
  if (file.size_bytes() > max_bytes)
    return resource_exhausted("expected a file of at most ", max_bytes, " bytes, found ",
                              file.size_bytes());
  std::string head(std::min<std::uint64_t>(file.size_bytes(), 2), '\0');
  if (Status read = file.read_at(0, head.data(), head.size()); !read.ok()) return read;
  if (!is_gzip(head)) return use(pieces_of(file));
  GzipPieces unpacked(pieces_of(file), max_bytes);
  return use([&unpacked] { return unpacked.next(); });
}

}  // namespace

// One inflating stream. The destructor frees zlib's state.
class GzipPieces::Inflater {
 public:
  Inflater(NextBytes packed, std::uint64_t max_bytes)
      : packed_(std::move(packed)), max_bytes_(max_bytes) {
    is_open_ = inflateInit2(&stream_, kGzipOnly) == Z_OK;
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (is_open_) inflateEnd(&stream_);
  }

  Result<std::string_view> next() {
    if (!is_open_) return resource_exhausted("gzip: expected memory to unpack, found none");
    while (true) {
      if (rest_.empty()) {
        auto more = packed_();
        if (!more.ok()) return more.status();
        rest_ = *more;
      }
      const bool is_end = rest_.empty();
      if (is_end && is_between_members_) return std::string_view();
      if (is_between_members_ && inflateReset(&stream_) != Z_OK)
        return resource_exhausted("gzip: expected memory to unpack, found none");
      is_between_members_ = false;
      const int code = inflate_piece();
      if (unpacked_ > max_bytes_)
        return resource_exhausted("gzip: expected at most ", max_bytes_,
                                  " bytes when unpacked, found more");
      is_between_members_ = code == Z_STREAM_END;
      if (piece_bytes_ > 0) return std::string_view(piece_.data(), piece_bytes_);
      if (code == Z_STREAM_END) continue;
      if (is_end || (code != Z_OK && code != Z_BUF_ERROR))
        return data_loss("gzip: expected a whole packed file, found ",
                         is_end ? "that it is cut off" : "damaged bytes", " after ", unpacked_,
                         " unpacked bytes");
    }
  }

 private:
  int inflate_piece() {
    const std::size_t given = std::min(rest_.size(), kMostAtOnce);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest_.data()));
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(piece_.data());
    stream_.avail_out = static_cast<uInt>(piece_.size());
    const int code = inflate(&stream_, Z_NO_FLUSH);
    rest_.remove_prefix(given - stream_.avail_in);
    piece_bytes_ = piece_.size() - stream_.avail_out;
    unpacked_ += piece_bytes_;
    return code;
  }

  NextBytes packed_;
  std::uint64_t max_bytes_;
  std::uint64_t unpacked_ = 0;
  z_stream stream_{};
  bool is_open_ = false;
  bool is_between_members_ = false;
  std::string_view rest_;
  std::size_t piece_bytes_ = 0;
  std::array<char, 1 << 16> piece_;
};

GzipPieces::GzipPieces(NextBytes packed, std::uint64_t max_bytes)
    : inflater_(std::make_unique<Inflater>(std::move(packed), max_bytes)) {}
GzipPieces::GzipPieces(GzipPieces&&) noexcept = default;
GzipPieces::~GzipPieces() = default;
Result<std::string_view> GzipPieces::next() {
  return inflater_->next();
}

bool is_gzip(std::string_view bytes) {
  return bytes.starts_with("\x1f\x8b");
}

Result<std::string> gunzip(std::string_view bytes, std::size_t max_bytes) {
  GzipPieces pieces(one_piece(bytes), max_bytes);
  std::string out;
  while (true) {
    const auto piece = pieces.next();
    if (!piece.ok()) return piece.status();
    if (piece->empty()) return out;
    out += *piece;
  }
}

Status with_unpacked(const std::filesystem::path& path, std::uint64_t max_bytes,
                     const std::function<Status(const NextBytes& next)>& use) {
  const auto file = InputFile::open(path);
  if (!file.ok()) return file.status();
  Status used = use_unpacked(*file, max_bytes, use);
  return used.ok() ? used : used.with_context(path.string());
}

}  // namespace cox::io
