#include "coordinator/transport/mpi_error.h"

#include <array>

namespace cox::transport {

Status mpi_status(int code, const char* call, const std::string& context) {
  if (code == MPI_SUCCESS) return ok_status();
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  std::string said(text.data(), static_cast<std::size_t>(length));
  if (said.empty()) said = "error " + std::to_string(code);
  return unavailable(std::string(call) + " (" + context + "): " + said);
}

}  // namespace cox::transport
