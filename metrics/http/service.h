// Service answers what comes in over the connections of an HttpServer. A connection asks once: its
// head is parsed (message.h), judged (access.h), and answered, or it follows a stream of events
// (event_feed.h). Each has deadlines, and the table of connections makes room for new ones
// (connections.h). Everything is called on the thread that runs `io`; pages are rendered on
// `pages`.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "metrics/http/access.h"
#include "metrics/http/connections.h"
#include "metrics/request.h"

namespace cox::metrics {

class Broadcast;
class Connection;

// On the I/O thread, but for `source`, `access`, `open_pages` and posting to `pages`.
struct Service {
  // Gives everything that a request is answered from. Called on both threads.
  using Source = std::function<Served()>;

  Service(Source made_from, Access who, ConnectionLimits limits);
  ~Service();

  void take_in(boost::asio::ip::tcp::socket socket);
  // Closes a connection, for want of descriptors. Returns whether there was one.
  bool make_room();
  // Ends all connections, those that are answered after a while.
  void stop();

  // Closes the connection, where there is one.
  void close(std::optional<ConnectionTable::Id> id);
  Broadcast* broadcast_at(std::string_view path) const;
  std::size_t followers() const;

  boost::asio::io_context io{1};
  boost::asio::thread_pool pages{1};
  const Source source;
  const Access access;
  OpenPages open_pages;
  ConnectionTable table;
  std::unordered_map<ConnectionTable::Id, std::shared_ptr<Connection>> open;
  std::vector<std::unique_ptr<Broadcast>> broadcasts;
};

}  // namespace cox::metrics
