#include "coordinator/core/log.h"

#include <utility>

namespace cox {
namespace {

const char* word(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    default:
      return "error";
  }
}

}  // namespace

Log::Log(LogLevel least, RankId rank, Sink sink)
    : least_(least), rank_(rank), sink_(std::move(sink)) {}

void Log::write(LogLevel level, std::string_view message) const {
  if (!sink_ || level < least_ || level == LogLevel::quiet) return;
  std::string line = "coxswain";
  if (rank_ != kRoot || level >= LogLevel::warning)
    line += "[" + std::to_string(rank_.value()) + "]";
  if (level != LogLevel::info) line += std::string(" ") + word(level);
  line += ": ";
  line += message;
  line += '\n';
  sink_(line);
}

void Log::on_change(LogLevel level, const std::string& topic, const std::string& message) {
  std::string& last = last_[topic];
  if (last == message) return;
  last = message;
  write(level, message);
}

}  // namespace cox
