#include "coordinator/io/config_source.h"

#include <utility>

#include "coordinator/io/file.h"

namespace cox::io {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

}  // namespace

Result<std::string> read_config_file(const std::filesystem::path& path) {
  Result<std::string> content = read_file(path, kMaxFileBytes);
  return content.ok() ? content : content.status().with_context("config");
}

Result<LoadedConfig> load_config(Config base, std::span<const std::string> environment,
                                 std::span<const std::string> arguments) {
  LoadedConfig loaded{std::move(base), {}};
  if (const std::string path = config_file(environment, arguments); !path.empty()) {
    const Result<std::string> content = read_config_file(path);
    if (!content.ok()) return content.status();
    if (Status status = apply_text(loaded.config, *content, path); !status.ok()) return status;
  }
  if (Status status = apply_environment(loaded.config, environment); !status.ok()) return status;
  Result<FlagsApplied> flags = apply_flags(loaded.config, arguments);
  if (!flags.ok()) return flags.status();
  loaded.rest = std::move(flags->rest);
  if (Status status = validate(loaded.config); !status.ok()) return status;
  return loaded;
}

}  // namespace cox::io
