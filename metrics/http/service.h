// Service answers the connections of an HttpServer. A connection sends one request. The head is
// parsed (message.h) and judged (access.h); then the connection is answered, or follows a stream of
// events (event_feed.h). Every stage has a deadline, and the table of connections makes room for
// new ones (connections.h). All functions run on the thread of `io`; pages are rendered on `pages`.
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

// Use on the I/O thread, except `source`, `access`, `open_pages` and posting to `pages`.
struct Service {
  // Returns everything that requests are answered from. Called on both threads.
  using Source = std::function<Served()>;

  Service(Source made_from, Access who, ConnectionLimits limits);
  ~Service();

  void take_in(boost::asio::ip::tcp::socket socket);
  // Closes a connection to free its descriptor. Returns whether there was one.
  bool make_room();
  // Ends all connections. Those being answered get a short deadline first.
  void stop();

  // Closes the connection `id`, if any.
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
