#include "coordinator/policies/sentence.h"

#include <cstdarg>
#include <cstdio>

namespace cox {

std::string sentence(const char* format, ...) {
  char buffer[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

}  // namespace cox
