#include "sdk/src/libtorch/version.h"

#include <ATen/Version.h>
#include <torch/headeronly/version.h>

namespace cox::detail {
namespace {

std::string_view minor_of(std::string_view version) {
  const std::size_t first = version.find('.');
  return version.substr(0, version.find('.', first == version.npos ? first : first + 1));
}

}  // namespace

std::string version_in(std::string_view libtorch_config) {
  constexpr std::string_view kBefore = "TORCH_VERSION=";
  const std::size_t at = libtorch_config.find(kBefore);
  if (at == libtorch_config.npos) return {};
  const std::string_view rest = libtorch_config.substr(at + kBefore.size());
  return std::string(rest.substr(0, rest.find_first_not_of("0123456789.")));
}

Status check_version(std::string_view compiled_with, std::string_view loaded) {
  if (loaded.empty() || minor_of(loaded) == minor_of(compiled_with)) return ok_status();
  return failed_precondition("expected LibTorch ", compiled_with,
                             ", with which this program was compiled, found ", loaded,
                             " in this process; compile the program again, or put the folder of "
                             "the matching LibTorch first in LD_LIBRARY_PATH");
}

std::string loaded_version() {
  return version_in(at::show_config());
}

Status check_loaded_version() {
  return check_version(TORCH_VERSION, loaded_version());
}

}  // namespace cox::detail
