#include "http_client.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace cox::metrics {

RawConnection::RawConnection(std::uint16_t port) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{30, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(socket_);
    socket_ = -1;
  }
}

RawConnection::~RawConnection() {
  if (socket_ >= 0) ::close(socket_);
}

bool RawConnection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

std::string RawConnection::receive_all() {
  std::string all;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::recv(socket_, buffer, sizeof buffer, 0);
    if (got <= 0) return all;
    all.append(buffer, static_cast<std::size_t>(got));
  }
}

std::string RawConnection::receive_until(std::string_view text) {
  std::string all;
  char buffer[4096];
  while (all.find(text) == std::string::npos) {
    const ssize_t got = ::recv(socket_, buffer, sizeof buffer, 0);
    if (got <= 0) break;
    all.append(buffer, static_cast<std::size_t>(got));
  }
  return all;
}

std::string response_to(std::uint16_t port, std::string_view bytes) {
  RawConnection connection(port);
  connection.send(bytes);
  return connection.receive_all();
}

std::string get(std::uint16_t port, std::string_view target) {
  return response_to(port, "GET " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

}  // namespace cox::metrics
