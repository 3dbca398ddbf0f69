#include "coordinator/core/log.h"

#include <utility>

namespace cox {

Log::Log(LogLevel least, RankId rank, Sink sink, std::size_t width)
    : least_(least), rank_(rank), sink_(std::move(sink)), width_(width) {}

void Log::write(LogLevel level, std::string_view message) const {
  if (!sink_ || level < least_ || level == LogLevel::quiet) return;
  std::string line = "coxswain";
  if (rank_ != kRoot || level >= LogLevel::warning) line += concat("[", rank_, "]");
  if (level != LogLevel::info) line += concat(" ", kLogLevelNames[static_cast<std::size_t>(level)]);
  line += concat(": ", message);
  if (width_ > 0 && level == LogLevel::info) line = shortened(line, width_);
  sink_(line + "\n");
}

void Log::on_change(LogLevel level, const std::string& topic, const std::string& message) {
  std::string& last = last_[topic];
  if (last == message) return;
  last = message;
  write(level, message);
}

}  // namespace cox
