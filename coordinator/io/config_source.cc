#include "coordinator/io/config_source.h"

#include <system_error>
#include <utility>

#include "coordinator/io/file.h"

namespace cox::io {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

// The user's sources, in the order of application.
struct Sources {
  std::string path;  // the file's path; empty = none
  std::string text;  // the file's text
  std::span<const std::string> environment;
  std::span<const std::string> arguments;
};

Result<FlagsApplied> apply(Config& config, const Sources& sources) {
  if (Status s = apply_text(config, sources.text, sources.path); !s.ok()) return s;
  if (Status s = apply_environment(config, sources.environment); !s.ok()) return s;
  return apply_flags(config, sources.arguments);
}

// Returns whether the sources set the port. A Config does not record set values, so the function
// starts from another port and checks whether the sources replace it. REQUIRES: the sources were
// applied without an error before.
bool set_port(Config base, const Sources& sources, std::uint16_t port) {
  base.http.port = port == 1 ? 2 : 1;
  static_cast<void>(apply(base, sources));
  return base.http.port == port;
}

}  // namespace

Result<std::string> read_config_file(const std::filesystem::path& path) {
  Result<std::string> content = read_file(path, kMaxFileBytes);
  return content.ok() ? content : content.status().with_context("config");
}

Result<LoadedConfig> load_config(Config base, std::span<const std::string> environment,
                                 std::span<const std::string> arguments) {
  Sources sources{config_file(environment, arguments), {}, environment, arguments};
  if (!sources.path.empty()) {
    Result<std::string> content = read_config_file(sources.path);
    if (!content.ok()) return content.status();
    sources.text = std::move(*content);
  }
  LoadedConfig loaded{base, {}};
  Result<FlagsApplied> flags = apply(loaded.config, sources);
  if (!flags.ok()) return flags.status();
  loaded.rest = std::move(flags->rest);
  loaded.sets_port = base.http.port != HttpConfig{}.port ||
                     set_port(std::move(base), sources, loaded.config.http.port);
  if (Status status = validate(loaded.config); !status.ok()) return status;
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  if (Status made = make_paths_absolute(loaded.config, here); !made.ok()) return made;
  return loaded;
}

}  // namespace cox::io
