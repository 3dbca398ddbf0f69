#include "metrics/records/step_lines.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/io/file.h"
#include "metrics/records/run_record.h"

namespace cox::io {
namespace {

using diagnosis::absent;
using diagnosis::StepSection;
using diagnosis::StepValue;

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxDepth = 64;
constexpr double kMostNumber = 0x1p53;

// Parses one line by hand. nlohmann-json builds a tree for each line, at a fiftieth of this rate;
// other parsers of this rate refuse NaN.
class LineText {
 public:
  explicit LineText(std::string_view line) : at_(line.data()), end_(at_ + line.size()) {}

  bool ok() const { return is_ok_; }
  void fail() { is_ok_ = false; }
  bool at_end() {
    skip_blanks();
    return at_ == end_;
  }
  // Skips blanks, then takes `c` if it is next.
  bool take(char c) {
    skip_blanks();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  char next() {
    skip_blanks();
    return at_ == end_ ? '\0' : *at_;
  }

  // Returns a string without its quotes. Escapes stay as written.
  std::string_view string() {
    if (!take('"')) return failed();
    const char* begin = at_;
    while (at_ != end_ && *at_ != '"') at_ += *at_ == '\\' && at_ + 1 != end_ ? 2 : 1;
    if (at_ == end_) return failed();
    return {begin, static_cast<std::size_t>(at_++ - begin)};
  }

  // Parses a number, or a word for one: true is 1, false 0, null absent.
  double number() {
    switch (next()) {
      case 'N':
        return word("NaN", std::numeric_limits<double>::quiet_NaN());
      case 'I':
        return word("Infinity", std::numeric_limits<double>::infinity());
      case 't':
        return word("true", 1);
      case 'f':
        return word("false", 0);
      case 'n':
        return word("null", absent());
      default:
        break;
    }
    if (std::string_view(at_, end_).starts_with("-I"))
      return word("-Infinity", -std::numeric_limits<double>::infinity());
    return digits();
  }

  void skip_value(std::size_t depth = 0) {
    if (depth > kMaxDepth) return fail();
    const char c = next();
    if (c == '"') {
      string();
    } else if (c == '{') {
      skip_list('{', '}', depth);
    } else if (c == '[') {
      skip_list('[', ']', depth);
    } else {
      number();
    }
  }

 private:
  void skip_blanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  std::string_view failed() {
    fail();
    return {};
  }
  double word(std::string_view text, double value) {
    if (!std::string_view(at_, end_).starts_with(text)) fail();
    if (is_ok_) at_ += text.size();
    return value;
  }
  void skip_list(char open, char close, std::size_t depth) {
    take(open);
    if (take(close)) return;
    do {
      if (open == '{') {
        string();
        if (!take(':')) fail();
      }
      if (is_ok_) skip_value(depth + 1);
    } while (is_ok_ && take(','));
    if (!take(close)) fail();
  }
  // Decimals of up to 15 digits and 22 places are exact in one division (Clinger, 1990).
  double digits() {
    static constexpr std::array<double, 23> kPowers = {
        1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
        1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char* begin = at_;
    const bool is_negative = at_ != end_ && *at_ == '-';
    if (is_negative) ++at_;
    std::uint64_t whole = 0;
    const char* first = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') whole = 10 * whole + digit(*at_++);
    std::ptrdiff_t count = at_ - first;
    std::size_t places = 0;
    if (count > 0 && at_ != end_ && *at_ == '.') {
      ++at_;
      for (; at_ != end_ && *at_ >= '0' && *at_ <= '9'; ++places)
        whole = 10 * whole + digit(*at_++);
      count += static_cast<std::ptrdiff_t>(places);
    }
    const bool has_exponent = at_ != end_ && (*at_ == 'e' || *at_ == 'E');
    if (has_exponent || count > 15 || count == 0) return slowly(begin);
    const double value = static_cast<double>(whole) / kPowers[places];
    return is_negative ? -value : value;
  }
  static std::uint64_t digit(char c) { return static_cast<std::uint64_t>(c - '0'); }
  double slowly(const char* begin) {
    double value = 0;
    const auto [stop, code] = std::from_chars(begin, end_, value);
    if (code == std::errc::result_out_of_range) value = std::numeric_limits<double>::infinity();
    if (code == std::errc::invalid_argument) fail();
    at_ = stop;
    return value;
  }

  const char* at_;
  const char* end_;
  bool is_ok_ = true;
};

}  // namespace

// Buffers the values of a line until the line is known to be whole.
class StepLineReader::Parser {
 public:
  explicit Parser(Take take) : take_(std::move(take)) {}

  void take(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      const std::string_view piece = bytes.substr(0, end);
      if (end == std::string_view::npos) return keep(piece);
      if (kept_.empty()) {
        add(piece);
      } else {
        keep(piece);
        add(kept_);
        kept_.clear();
      }
      bytes.remove_prefix(end + 1);
    }
  }

  void finish() {
    const std::size_t before = damaged_;
    if (!kept_.empty()) add(kept_);
    is_torn_ = damaged_ > before;
    damaged_ = before;
  }

  std::size_t damaged_ = 0;
  bool is_torn_ = false;

 private:
  void keep(std::string_view piece) {
    // Keeps one byte beyond the limit, which marks the line as too long.
    kept_.append(
        piece.substr(0, kMaxStepLineBytes + 1 - std::min(kept_.size(), kMaxStepLineBytes)));
  }

  void add(std::string_view line) {
    if (line.empty() || line == "\r") return;
    values_.clear();
    buckets_.clear();
    step_ = time_ = absent();
    if (line.size() > kMaxStepLineBytes || !read(line) || !is_step()) {
      ++damaged_;
      return;
    }
    take_({step_, time_, values_, buckets_});
  }

  bool is_step() const { return std::fabs(step_) <= kMostNumber && step_ == std::trunc(step_); }

  bool read(std::string_view line) {
    LineText text(line);
    if (!text.take('{')) return false;
    if (!text.take('}')) {
      do {
        read_member(text);
      } while (text.ok() && text.take(','));
      if (!text.take('}')) return false;
    }
    return text.ok() && text.at_end();
  }

  void read_member(LineText& text) {
    const std::string_view name = text.string();
    if (!text.take(':')) return text.fail();
    const char next = text.next();
    if (name == "phases") {
      read_section(text, StepSection::phases);
    } else if (name == "scalars") {
      read_section(text, StepSection::scalars);
    } else if (name == "memory") {
      read_section(text, StepSection::memory);
    } else if (name == "step" || name == "timestamp") {
      (name == "step" ? step_ : time_) = text.number();
    } else if (name == "buckets" && next == '[') {
      read_list(text, [this, &text] { read_bucket(text); });
    } else if (next == '"' || next == '{' || next == '[') {
      text.skip_value();
    } else {
      values_.push_back({StepSection::own, name, text.number()});
    }
  }

  template <class Read>
  static void read_list(LineText& text, const Read& read) {
    text.take('[');
    if (text.take(']')) return;
    do {
      read();
    } while (text.ok() && text.take(','));
    if (!text.take(']')) text.fail();
  }

  // Skips values that are no list of four numbers, like all unknown members.
  void read_bucket(LineText& text) {
    if (text.next() != '[') return text.skip_value();
    std::array<double, 4> numbers{};
    std::size_t count = 0;
    bool is_one = true;
    read_list(text, [&] {
      const bool is_other = text.next() == '"' || text.next() == '{' || text.next() == '[';
      if (is_other || count == numbers.size()) {
        is_one = false;
        return text.skip_value();
      }
      numbers[count++] = text.number();
    });
    is_one = is_one && count == numbers.size() && buckets_.size() < diagnosis::kMostBucketSpans;
    if (is_one) buckets_.push_back({numbers[0], numbers[1], numbers[2], numbers[3]});
  }

  void read_section(LineText& text, StepSection section) {
    if (text.next() == 'n') return text.skip_value();
    if (!text.take('{')) return text.fail();
    if (text.take('}')) return;
    do {
      const std::string_view name = text.string();
      if (!text.take(':')) return text.fail();
      const bool is_other = text.next() == '"' || text.next() == '{' || text.next() == '[';
      if (is_other && section == StepSection::scalars) {
        text.skip_value();
      } else {
        values_.push_back({section, name, text.number()});
      }
    } while (text.ok() && text.take(','));
    if (!text.take('}')) text.fail();
  }

  Take take_;
  std::string kept_;  // the beginning of a line
  std::vector<StepValue> values_;
  std::vector<diagnosis::StepBucketSpan> buckets_;
  double step_ = 0;
  double time_ = 0;
};

StepLineReader::StepLineReader(Take take) : parser_(std::make_unique<Parser>(std::move(take))) {}
StepLineReader::StepLineReader(StepLineReader&&) noexcept = default;
StepLineReader::~StepLineReader() = default;
void StepLineReader::take(std::string_view bytes) {
  parser_->take(bytes);
}
void StepLineReader::finish() {
  parser_->finish();
}
std::size_t StepLineReader::damaged() const {
  return parser_->damaged_;
}
bool StepLineReader::is_torn() const {
  return parser_->is_torn_;
}

Status read_step_file(const std::filesystem::path& path,
                      const std::function<Status(std::string_view bytes)>& take) {
  const auto file = InputFile::open(path, Links::refused);
  if (!file.ok()) return file.status();
  return file->each_piece(kChunkBytes, take);
}

Status read_step_lines(const std::filesystem::path& path, StepLineReader& lines) {
  const Status read = read_step_file(path, [&lines](std::string_view bytes) {
    lines.take(bytes);
    return ok_status();
  });
  lines.finish();
  return read;
}

}  // namespace cox::io
