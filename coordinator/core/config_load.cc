#include "coordinator/core/config_load.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

namespace cox {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return not_found("config: cannot open " + path + ": " + std::strerror(errno));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad()) {
    return not_found("config: cannot read " + path);
  }
  if (text.size() > kMaxFileBytes) {
    return resource_exhausted("config: " + path + " is larger than " +
                              std::to_string(kMaxFileBytes) + " bytes; is it the right file?");
  }
  return text;
}

}  // namespace

std::string config_file(std::span<const std::string> environment,
                        std::span<const std::string> arguments) {
  constexpr std::string_view kFlag = "--cox.config";
  constexpr std::string_view kVariable = "COX_CONFIG=";
  std::string path;
  for (const std::string& entry : environment) {
    if (entry.starts_with(kVariable)) path = entry.substr(kVariable.size());
  }
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (arguments[i] == kFlag && i + 1 < arguments.size()) path = arguments[i + 1];
    if (arguments[i].starts_with(std::string(kFlag) + "=")) {
      path = arguments[i].substr(kFlag.size() + 1);
    }
  }
  return path;
}

Result<LoadedConfig> load_config(Config base, std::span<const std::string> environment,
                                 std::span<const std::string> arguments) {
  LoadedConfig loaded{std::move(base), {}};
  const std::string path = config_file(environment, arguments);
  if (!path.empty()) {
    const Result<std::string> content = read_file(path);
    if (!content.ok()) return content.status();
    const Status status = apply_text(loaded.config, *content, path);
    if (!status.ok()) return status;
  }
  Status status = apply_environment(loaded.config, environment);
  if (!status.ok()) return status;
  Result<FlagsApplied> flags = apply_flags(loaded.config, arguments);
  if (!flags.ok()) return flags.status();
  loaded.rest = std::move(flags->rest);
  status = validate(loaded.config);
  if (!status.ok()) return status;
  return loaded;
}

}  // namespace cox
