// The least HTTP client for tests: sends bytes to 127.0.0.1, returns what comes back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cox::metrics {

class RawConnection {
 public:
  explicit RawConnection(std::uint16_t port);
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool connected() const { return socket_ >= 0; }
  // Returns whether the server still took them.
  bool send(std::string_view bytes);
  // Until the server closes, or thirty seconds pass.
  std::string receive_all();
  // Until `text` has come; the same limits.
  std::string receive_until(std::string_view text);

 private:
  int socket_ = -1;
};

// Sends `bytes` on a connection of its own and returns the response.
std::string response_to(std::uint16_t port, std::string_view bytes);

// The whole response to a GET.
std::string get(std::uint16_t port, std::string_view target);

}  // namespace cox::metrics
