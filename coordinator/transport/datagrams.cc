#include "coordinator/transport/datagrams.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "coordinator/io/limits.h"

namespace cox::transport {
namespace {

sockaddr_in socket_address(const DatagramAddress& address) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = address.ip;
  out.sin_port = htons(address.port);
  return out;
}

// System calls take addresses of every family by one type.
const sockaddr* any_family(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

Status failed(const char* call) {
  return unavailable("datagrams: ", call, " failed: ", io::errno_text(errno));
}

}  // namespace

Result<Datagrams> Datagrams::open() {
  Datagrams made(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int descriptor = made.socket_.number();
  if (descriptor < 0) return failed("socket");
  sockaddr_in address = socket_address({htonl(INADDR_ANY), 0});
  if (bind(descriptor, any_family(address), sizeof address) != 0) return failed("bind");
  socklen_t size = sizeof address;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return failed("getsockname");
  made.port_ = ntohs(address.sin_port);
  return made;
}

void Datagrams::send(std::span<const std::byte> bytes, const DatagramAddress& to) const {
  const sockaddr_in address = socket_address(to);
  static_cast<void>(sendto(socket_.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL,
                           any_family(address), sizeof address));
}

std::optional<Datagrams::Received> Datagrams::receive(std::span<std::byte> into) const {
  sockaddr_in from{};
  socklen_t size = sizeof from;
  const ssize_t got = recvfrom(socket_.number(), into.data(), into.size(), MSG_TRUNC,
                               reinterpret_cast<sockaddr*>(&from), &size);
  // The system also reports a refusal by the peer's machine here. The socket stays usable.
  if (got < 0) return std::nullopt;
  return Received{static_cast<std::size_t>(got), {from.sin_addr.s_addr, ntohs(from.sin_port)}};
}

std::vector<std::uint32_t> own_ip_addresses(std::size_t most) {
  std::vector<std::uint32_t> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
      sockaddr_in address{};
      std::memcpy(&address, each->ifa_addr, sizeof address);
      if (ntohl(address.sin_addr.s_addr) >> 24 != 127) addresses.push_back(address.sin_addr.s_addr);
    }
    freeifaddrs(all);
  }
  addresses.resize(std::min(addresses.size(), most - 1));
  addresses.push_back(htonl(INADDR_LOOPBACK));
  return addresses;
}

}  // namespace cox::transport
