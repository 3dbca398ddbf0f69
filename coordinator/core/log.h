// Log: one line for people per event, with level and rank, through a sink that is passed in. Lines
// of the same `topic` with the same text in a row are written once. One thread at a time per Log;
// copies are independent. Does not use torch's logging.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "coordinator/core/config.h"
#include "coordinator/core/units.h"

namespace cox {

class Log {
 public:
  using Sink = std::function<void(std::string_view line)>;

  Log() = default;  // drops everything
  // Cuts lines of level info to `width` bytes. With width 0, and on other levels, lines stay whole.
  Log(LogLevel least, RankId rank, Sink sink, std::size_t width = 0);

  void write(LogLevel level, std::string_view message) const;
  void debug(std::string_view message) const { write(LogLevel::debug, message); }
  void info(std::string_view message) const { write(LogLevel::info, message); }
  void warning(std::string_view message) const { write(LogLevel::warning, message); }
  void error(std::string_view message) const { write(LogLevel::error, message); }

  // Writes only if `message` differs from the topic's last one.
  void on_change(LogLevel level, const std::string& topic, const std::string& message);

 private:
  LogLevel least_ = LogLevel::quiet;
  RankId rank_{};
  Sink sink_;
  std::size_t width_ = 0;
  std::map<std::string, std::string> last_;
};

}  // namespace cox
