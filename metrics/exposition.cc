#include "metrics/exposition.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

namespace cox::metrics {
namespace {

// Appends lines to a text.
class Writer {
 public:
  std::string take() { return std::move(text_); }

  void head(const Metric& row) {
    (text_ += "# HELP ").append(row.name) += ' ';
    escaped(row.help, false);
    ((text_ += "\n# TYPE ").append(row.name) += ' ').append(to_string(row.kind)) += '\n';
  }

  void series(const Metric& row, std::span<const std::string_view> labels, double value) {
    text_ += row.name;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      ((text_ += i == 0 ? '{' : ',') += row.values.labels[i].name) += "=\"";
      escaped(labels[i], true);
      text_ += '"';
    }
    if (!labels.empty()) text_ += '}';
    end_line(value);
  }

  // Unlike series() this has the suffixes of histograms, and bounds as labels.
  void part(const Metric& row, std::string_view suffix, double value) {
    (text_ += row.name) += suffix;
    end_line(value);
  }
  void bucket(const Metric& row, double bound, std::uint64_t count) {
    (text_ += row.name) += "_bucket{le=\"";
    number(bound);
    text_ += "\"}";
    end_line(static_cast<double>(count));
  }

 private:
  void end_line(double value) {
    text_ += ' ';
    number(value);
    text_ += '\n';
  }

  // The shortest digits that are read as the same number; most are whole, which is quicker.
  void number(double value) {
    if (std::isinf(value)) {
      text_ += "+Inf";
      return;
    }
    std::array<char, 32> digits{};
    char* const end = digits.data() + digits.size();
    const bool is_whole = std::fabs(value) < 0x1p53 && value == std::trunc(value);
    const auto done = is_whole
                          ? std::to_chars(digits.data(), end, static_cast<std::int64_t>(value))
                          : std::to_chars(digits.data(), end, value);
    text_.append(digits.data(), done.ptr);
  }

  void escaped(std::string_view raw, bool is_label) {
    const auto is_special = [is_label](char c) {
      return c == '\\' || c == '\n' || (is_label && c == '"');
    };
    std::size_t from = 0;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (!is_special(raw[i])) continue;
      text_.append(raw, from, i - from) += '\\';
      text_ += raw[i] == '\n' ? 'n' : raw[i];
      from = i + 1;
    }
    text_.append(raw, from);
  }

  std::string text_;
};

void put_histogram(Writer& writer, const Metric& row, const BucketCounts& counts) {
  const auto bounds = counts.bounds();
  for (std::size_t i = 0; i < bounds.size(); ++i)
    writer.bucket(row, bounds[i], counts.cumulative(i));
  writer.bucket(row, std::numeric_limits<double>::infinity(), counts.count());
  writer.part(row, "_sum", counts.sum());
  writer.part(row, "_count", static_cast<double>(counts.count()));
}

}  // namespace

std::string exposition(std::span<const Metric> rows, const Snapshot& snapshot) {
  Writer writer;
  for (const Metric& row : rows) {
    writer.head(row);
    if (row.kind == MetricKind::histogram) {
      put_histogram(writer, row, row.buckets(snapshot));
      continue;
    }
    row.values.read(snapshot,
                    Emit([&](std::span<const std::string_view> labels, double value) {
                      if (std::isfinite(value)) writer.series(row, labels, value);
                    }));
  }
  return writer.take();
}

std::string exposition(const Snapshot& snapshot) {
  return exposition(catalogue(), snapshot);
}

}  // namespace cox::metrics
