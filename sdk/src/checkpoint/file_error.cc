#include "sdk/src/checkpoint/file_error.h"

#include <cerrno>

namespace cox::detail {

StatusCode code_of_errno(int error, StatusCode otherwise) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return StatusCode::resource_exhausted;
    case ENOENT:
    case ENOTDIR:
      return StatusCode::not_found;
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
      return StatusCode::failed_precondition;
    default:
      return otherwise;
  }
}

}  // namespace cox::detail
