#include "tests/bench/line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace cox::bench {
namespace {

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// Needs no escapes: keys and values are this folder's own plain text.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace

Line::Line(std::string_view goal, double value, std::string_view unit)
    : head_("{\"goal\":" + quoted(goal) + ",\"value\":" + number(value)), unit_(quoted(unit)) {}

Line& Line::limit(double value, Better better) {
  limit_ = number(value);
  better_ = better;
  return *this;
}

Line& Line::better(Better better) {
  better_ = better;
  return *this;
}

void Line::add(std::string_view key, const std::string& value) {
  if (!config_.empty()) config_ += ',';
  config_ += quoted(key);
  config_ += ':';
  config_ += value;
}

Line& Line::with(std::string_view key, std::string_view text) {
  add(key, quoted(text));
  return *this;
}

Line& Line::with(std::string_view key, double value) {
  add(key, number(value));
  return *this;
}

std::string Line::text() const {
  return head_ + ",\"limit\":" + limit_ + ",\"unit\":" + unit_ +
         ",\"better\":" + (better_ == Better::lower ? "\"lower\"" : "\"higher\"") +
         ",\"config\":{" + config_ + "}}";
}

void Line::print() const {
  std::printf("%s\n", text().c_str());
  std::fflush(stdout);
}

double quantile(std::vector<double> samples, double part) {
  const auto last = static_cast<double>(samples.size() - 1);
  const auto at = static_cast<std::ptrdiff_t>(std::lround(part * last));
  std::nth_element(samples.begin(), samples.begin() + at, samples.end());
  return samples[static_cast<std::size_t>(at)];
}

Median median_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto n = static_cast<double>(samples.size());
  const double half_width = 0.98 * std::sqrt(n);
  const auto at = [&](double place) {
    return samples[static_cast<std::size_t>(std::clamp(std::floor(place), 0.0, n - 1))];
  };
  return {at((n - 1) / 2), at(n / 2 - half_width - 1), at(n / 2 + half_width)};
}

Median centre_of(const std::vector<double>& samples) {
  std::vector<double> means;
  means.reserve(samples.size() * (samples.size() + 1) / 2);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::size_t j = 0; j <= i; ++j) means.push_back((samples[i] + samples[j]) / 2);
  }
  std::sort(means.begin(), means.end());
  const auto n = static_cast<double>(samples.size());
  const auto last = static_cast<double>(means.size()) - 1;
  const double half_width = 1.96 * std::sqrt(n * (n + 1) * (2 * n + 1) / 24);
  const auto at = [&](double place) {
    return means[static_cast<std::size_t>(std::clamp(std::floor(place), 0.0, last))];
  };
  return {at(last / 2), at(last / 2 - half_width), at(last / 2 + half_width + 1)};
}

Effort effort_of(int argc, const char* const* argv) {
  const bool quick =
      std::any_of(argv, argv + argc, [](std::string_view a) { return a == "--quick"; });
  return quick ? Effort::quick : Effort::full;
}

}  // namespace cox::bench
