#include "coordinator/core/log.h"

#include <utility>

namespace cox {

Log::Log(LogLevel least, RankId rank, Sink sink)
    : least_(least), rank_(rank), sink_(std::move(sink)) {}

void Log::write(LogLevel level, std::string_view message) const {
  if (!sink_ || level < least_ || level == LogLevel::quiet) return;
  std::string line = "coxswain";
  if (rank_ != kRoot || level >= LogLevel::warning) line += concat("[", rank_, "]");
  if (level != LogLevel::info) line += concat(" ", kLogLevelNames[static_cast<std::size_t>(level)]);
  sink_(concat(line, ": ", message, "\n"));
}

void Log::on_change(LogLevel level, const std::string& topic, const std::string& message) {
  std::string& last = last_[topic];
  if (last == message) return;
  last = message;
  write(level, message);
}

}  // namespace cox
