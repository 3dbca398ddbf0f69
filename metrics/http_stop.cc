#include "metrics/http_stop.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace cox::metrics {
namespace {

void knock(const sockaddr_in& address) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return;
  // Not waited for: reaching the listening queue is enough.
  (void)::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::close(socket);
}

sockaddr_in address_of(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  if (address.sin_addr.s_addr == htonl(INADDR_ANY))
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

void stop_promptly(mg_context* server, const std::string& host, std::uint16_t port) {
  std::atomic<bool> stopped{false};
  std::thread waker([&, address = address_of(host, port)] {
    while (!stopped) knock(address);
  });
  mg_stop(server);
  stopped = true;
  waker.join();
}

}  // namespace cox::metrics
