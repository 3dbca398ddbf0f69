// Datagrams: a UDP socket (IPv4) for small messages between nodes. Messages may be lost. Used by
// threads that must not call MPI. Nothing blocks. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/io/descriptor.h"

namespace cox::transport {

struct DatagramAddress {
  std::uint32_t ip = 0;  // in network byte order
  std::uint16_t port = 0;
  friend bool operator==(const DatagramAddress&, const DatagramAddress&) = default;
};

class Datagrams {
 public:
  struct Received {
    std::size_t size = 0;  // size of the datagram; a datagram longer than the memory was cut
    DatagramAddress from;
  };

  // Opens a socket on a free port of all interfaces.
  static Result<Datagrams> open();
  std::uint16_t port() const { return port_; }
  // Sends one datagram. Drops a datagram that cannot be sent.
  void send(std::span<const std::byte> bytes, const DatagramAddress& to) const;
  // Receives the next datagram. Returns nothing if none has arrived.
  std::optional<Received> receive(std::span<std::byte> into) const;

 private:
  explicit Datagrams(int socket) : socket_(socket) {}

  io::Descriptor socket_;
  std::uint16_t port_ = 0;
};

// Returns at most `most` addresses of this machine, in network byte order. Addresses that other
// machines can reach come first, the loopback address last.
std::vector<std::uint32_t> own_ip_addresses(std::size_t most);

}  // namespace cox::transport
