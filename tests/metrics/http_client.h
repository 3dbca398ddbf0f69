// A minimal HTTP client for tests: sends bytes to 127.0.0.1, returns the response.
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
  // Returns whether the server accepted the bytes.
  bool send(std::string_view bytes);
  // Receives until the server closes, thirty seconds at most.
  std::string receive_all();
  // Receives until `text` has arrived, thirty seconds at most.
  std::string receive_until(std::string_view text);

 private:
  int socket_ = -1;
};

// Sends `bytes` on a connection of its own and returns the response.
std::string response_to(std::uint16_t port, std::string_view bytes);

// Returns the whole response to a GET.
std::string get(std::uint16_t port, std::string_view target);

}  // namespace cox::metrics
