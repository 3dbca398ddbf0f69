#include "coordinator/transport/shared/lifeline.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>

#include "coordinator/io/limits.h"

namespace cox::transport {
namespace {

using io::Descriptor;

constexpr int kBacklog = 4096;
constexpr char kGoodbye = 'b';
constexpr rlim_t kHighest = 4096;   // a higher number would enlarge the process's descriptor table
constexpr int kSpare = 64;          // for lifelines of other sessions
constexpr std::size_t kDigits = 5;  // digits of a name chosen by the kernel, behind a zero: unix(7)
constexpr std::size_t kNameAt = offsetof(sockaddr_un, sun_path) + 1;

Status last_error(const char* expected) {
  return unavailable("expected ", expected, ", found none: ", io::errno_text(errno));
}

int bind_anywhere(int socket, sockaddr_un& address) {
  address.sun_family = AF_UNIX;
  socklen_t size = sizeof(sa_family_t);
  if (::bind(socket, reinterpret_cast<sockaddr*>(&address), size) != 0) return -1;
  if (::listen(socket, kBacklog) != 0) return -1;
  size = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  return size == kNameAt + kDigits ? 0 : -1;
}

int connect_to(int socket, std::uint64_t name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  for (std::size_t i = kDigits; i > 0; --i, name /= 16)
    address.sun_path[i] = "0123456789abcdef"[name % 16];
  return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), kNameAt + kDigits);
}

}  // namespace

Result<LifelinePort> LifelinePort::open() {
  LifelinePort port;
  port.socket_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  if (bind_anywhere(port.socket_.number(), address) != 0)
    return last_error("a local socket with a name of five digits");
  std::uint64_t name = 0;
  std::from_chars(address.sun_path + 1, address.sun_path + 1 + kDigits, name, 16);
  port.address_ = name + 1;
  return port;
}

Result<Lifeline> Lifeline::connect(std::uint64_t port) {
  const Descriptor low(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit most{};
  ::getrlimit(RLIMIT_NOFILE, &most);
  const auto high = static_cast<int>(std::min<rlim_t>(most.rlim_cur, kHighest)) - kSpare;
  Lifeline line;
  if (connect_to(low.number(), port - 1) == 0)
    line.socket_ = Descriptor(::fcntl(low.number(), F_DUPFD_CLOEXEC, high));
  if (line.socket_.number() < 0)
    return last_error("a socket of the process that reports deaths of ranks");
  return line;
}

Lifeline::~Lifeline() {
  if (socket_.number() >= 0)
    static_cast<void>(::send(socket_.number(), &kGoodbye, 1, MSG_NOSIGNAL | MSG_DONTWAIT));
}

}  // namespace cox::transport
