#include "coordinator/io/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>

namespace cox::io {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // zlib counts in unsigned int

// One inflating stream; what it holds ends with it.
class Inflater {
 public:
  explicit Inflater(std::string_view bytes) : rest_(bytes) {
    is_open_ = inflateInit2(&stream_, kGzipOnly) == Z_OK;
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (is_open_) inflateEnd(&stream_);
  }

  bool is_open() const { return is_open_; }
  bool is_done() const { return rest_.empty(); }

  // Appends the next piece; Z_STREAM_END at the end of a member.
  int next(std::string& out) {
    const std::size_t given = std::min(rest_.size(), kMostAtOnce);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest_.data()));
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(piece_.data());
    stream_.avail_out = static_cast<uInt>(piece_.size());
    const int code = inflate(&stream_, Z_NO_FLUSH);
    rest_.remove_prefix(given - stream_.avail_in);
    out.append(piece_.data(), piece_.size() - stream_.avail_out);
    return code;
  }
  bool begin_member() { return inflateReset(&stream_) == Z_OK; }

 private:
  z_stream stream_{};
  bool is_open_ = false;
  std::string_view rest_;
  std::array<char, 1 << 16> piece_;
};

}  // namespace

bool is_gzip(std::string_view bytes) {
  return bytes.starts_with("\x1f\x8b");
}

Result<std::string> gunzip(std::string_view bytes, std::size_t max_bytes) {
  Inflater inflater(bytes);
  if (!inflater.is_open()) return resource_exhausted("gzip: expected memory to unpack, found none");
  std::string out;
  while (true) {
    const std::size_t before = out.size();
    const int code = inflater.next(out);
    if (out.size() > max_bytes)
      return resource_exhausted("gzip: expected at most ", max_bytes,
                                " bytes when unpacked, found more");
    if (code == Z_STREAM_END && inflater.is_done()) return out;
    if (code == Z_STREAM_END && !inflater.begin_member())
      return resource_exhausted("gzip: expected memory to unpack, found none");
    if (code != Z_STREAM_END && code != Z_OK)
      return data_loss("gzip: expected a whole packed file, found ",
                       code == Z_BUF_ERROR ? "that it is cut off" : "damaged bytes", " after ",
                       out.size(), " unpacked bytes");
    if (code == Z_OK && inflater.is_done() && out.size() == before)
      return data_loss("gzip: expected a whole packed file, found that it is cut off after ",
                       out.size(), " unpacked bytes");
  }
}

}  // namespace cox::io
