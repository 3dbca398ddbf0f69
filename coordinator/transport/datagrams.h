// Datagrams: a UDP socket (IPv4) for small messages between nodes that may be lost, sent by threads
// that must not call MPI. Nothing blocks. One thread at a time.
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
    std::size_t size = 0;  // of the datagram; one that was longer than the memory was cut
    DatagramAddress from;
  };

  // Opens a socket on a free port of all interfaces.
  static Result<Datagrams> open();
  std::uint16_t port() const { return port_; }
  // What cannot be sent is lost.
  void send(std::span<const std::byte> bytes, const DatagramAddress& to) const;
  // Takes the next datagram; nothing when none is there.
  std::optional<Received> receive(std::span<std::byte> into) const;

 private:
  explicit Datagrams(int socket) : socket_(socket) {}

  io::Descriptor socket_;
  std::uint16_t port_ = 0;
};

// The addresses of this machine, in network byte order: those that others can reach first, this
// machine's own loopback last. At most `most`.
std::vector<std::uint32_t> own_ip_addresses(std::size_t most);

}  // namespace cox::transport
