#include "metrics/http/http_server.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/io/signals_blocked.h"
#include "metrics/http/access.h"
#include "metrics/http/connections.h"
#include "metrics/http/event_feed.h"
#include "metrics/http/message.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Phase = ConnectionTable::Phase;
using Milliseconds = std::chrono::milliseconds;

// Deadlines of a connection as a whole, however its bytes are spread over the time: for its request
// after it came, for its answer to be made and taken after the request, and for the client to close
// after the answer. Who follows events has the time of an answer for each piece of them.
constexpr Milliseconds kTimeToAsk(5000);
constexpr Milliseconds kTimeToAnswer(10000);
constexpr Milliseconds kTimeToLeave(500);
// The same for an answer when the server stops.
constexpr Milliseconds kLastTimeToAnswer(1000);
constexpr Milliseconds kPauseAfterError(100);  // of accepting
// A page that refreshes itself is back by then.
constexpr Milliseconds kTimeToComeBack = kStatusRefresh + Milliseconds(1000);
// What a client still sends when it has its answer. Some of it is read, because closing a socket
// with unread bytes may take the answer away from the client.
constexpr std::size_t kMostIgnoredBytes = std::size_t{64} << 10;
// How often followers are told what has changed. The parts are made once for all of them, and not
// at all where there are none.
constexpr Milliseconds kEventPeriod(1000);
constexpr std::size_t kMostFollowers = 64;    // of all streams
constexpr int kFollowerSendBytes = 64 << 10;  // that the system holds for one who does not read
// Training comes first when all cores are busy.
constexpr int kPagesPriority = 10;

Response answer(const Request& request, const HttpServer::Source& source) {
  try {
    return respond(request, source());
  } catch (const std::exception& error) {
    return refusal(500, std::string("internal error: ") + error.what());
  }
}

bool is_short_of_descriptors(const error_code& error) {
  return error == asio::error::no_descriptors || error == asio::error::no_buffer_space ||
         error == asio::error::no_memory || error.value() == ENFILE;
}

class Connection;
struct Service;

// Broadcast makes the parts of one stream about once a second, on the thread that renders, while
// somebody follows it, and offers them to its followers. On the I/O thread.
class Broadcast {
 public:
  Broadcast(Service& service, const Stream& stream);

  const Stream& stream() const { return stream_; }
  EventFeed& feed() { return feed_; }
  std::size_t followers() const { return followers_.size(); }

  void add(ConnectionTable::Id id, std::shared_ptr<Connection> connection);
  void remove(ConnectionTable::Id id);

 private:
  struct Moment {
    std::vector<EventPart> parts;
    EventsGoOn go_on = EventsGoOn::yes;
  };

  void make();
  Moment moment() const;
  void tell(Moment moment);
  void wait();

  Service& service_;
  const Stream& stream_;
  asio::steady_timer pause_;
  EventFeed feed_;
  std::unordered_map<ConnectionTable::Id, std::shared_ptr<Connection>> followers_;
  bool is_making_ = false;
};

// What all connections share. On the I/O thread, but for `source`, `access`, `open_pages` and
// post().
struct Service {
  Service(HttpServer::Source made_from, Access who, ConnectionLimits limits)
      : source(std::move(made_from)), access(std::move(who)), table(limits) {
    for (const Stream& stream : streams())
      broadcasts.push_back(std::make_unique<Broadcast>(*this, stream));
  }

  void close(std::optional<ConnectionTable::Id> id);
  Broadcast* broadcast_at(std::string_view path) const {
    for (const auto& broadcast : broadcasts) {
      if (broadcast->stream().endpoint.path == path) return broadcast.get();
    }
    return nullptr;
  }
  std::size_t followers() const {
    std::size_t count = 0;
    for (const auto& broadcast : broadcasts) count += broadcast->followers();
    return count;
  }

  asio::io_context io{1};
  asio::thread_pool pages{1};
  const HttpServer::Source source;
  const Access access;
  OpenPages open_pages{kTimeToComeBack};
  ConnectionTable table;
  std::unordered_map<ConnectionTable::Id, std::shared_ptr<Connection>> open;
  std::vector<std::unique_ptr<Broadcast>> broadcasts;
};

// One request of one client. Each operation under way keeps it alive.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Service& service, tcp::socket socket, ConnectionTable::Id id)
      : service_(service), socket_(std::move(socket)), deadline_(service.io), id_(id) {}

  void start() {
    end_within(kTimeToAsk);
    read();
  }

  void stop() {
    if (phase_ == Phase::asking || phase_ == Phase::following) return close();
    end_within(phase_ == Phase::answering ? kLastTimeToAnswer : kTimeToLeave);
  }

  void close() {
    if (is_closed_.exchange(true)) return;
    error_code ignored;
    socket_.close(ignored);
    deadline_.cancel();
    stop_following();
    service_.table.remove(id_);
    service_.open.erase(id_);
  }

  // Sends what has changed since the last time, unless that is still on its way.
  void offer() {
    if (is_closed_ || !events_ || on_its_way_) return;
    on_its_way_ = events_->feed().since(seen_);
    if (!on_its_way_) return;
    seen_ = events_->feed().version();
    write_events(*on_its_way_);
  }

 private:
  void enter(Phase phase) {
    phase_ = phase;
    service_.close(service_.table.set_phase(id_, phase));
  }

  void end_within(Milliseconds time) {
    deadline_.expires_after(time);
    deadline_.async_wait([self = shared_from_this()](const error_code& replaced) {
      const bool is_over = self->deadline_.expiry() <= asio::steady_timer::clock_type::now();
      if (!replaced && is_over) self->close();
    });
  }

  void read() {
    socket_.async_read_some(asio::buffer(piece_), [self = shared_from_this()](
                                                      const error_code& error, std::size_t count) {
      if (error) return self->close();
      self->received_.append(self->piece_.data(), count);
      self->take_head();
    });
  }

  void take_head() {
    const auto head = parse_head(received_);
    if (!head) return read();
    if (const auto* refused = std::get_if<Response>(&*head)) return send(*refused, Part::all);
    const Head& whole = std::get<Head>(*head);
    const Part part = whole.method == "HEAD" ? Part::head_only : Part::all;
    const auto judged = judge(whole, service_.access);
    if (const auto* refused = std::get_if<Response>(&judged)) return send(*refused, part);
    serve(std::get<Request>(judged), part);
  }

  void serve(const Request& request, Part part) {
    if (is_probe(request.path)) return send(answer(request, service_.source), part);
    Broadcast* const events = service_.broadcast_at(request.path);
    if (events != nullptr && part == Part::all) return follow(*events);
    if (refreshes_itself(request.path)) service_.open_pages.fetched(OpenPages::Clock::now());
    enter(Phase::answering);
    end_within(kTimeToAnswer);
    asio::post(service_.pages, [self = shared_from_this(), request, part]() mutable {
      Response page;
      if (!self->is_closed_) page = answer(request, self->service_.source);
      asio::io_context& io = self->service_.io;
      asio::post(
          io, [self = std::move(self), page = std::move(page), part] { self->send(page, part); });
    });
  }

  void send(const Response& response, Part part) {
    if (is_closed_) return;
    if (phase_ != Phase::answering) end_within(kTimeToAnswer);
    enter(Phase::answering);
    sent_ = bytes_of(response, part);
    asio::async_write(socket_, asio::buffer(sent_),
                      [self = shared_from_this()](const error_code& error, std::size_t) {
                        error ? self->close() : self->leave();
                      });
  }

  void follow(Broadcast& events) {
    if (service_.followers() >= kMostFollowers)
      return send(refusal(503, "expected at most " + std::to_string(kMostFollowers) +
                                   " followers of events at a time, found as many already; ask for "
                                   "the page again instead"),
                  Part::all);
    enter(Phase::following);
    if (is_closed_) return;
    error_code ignored;
    socket_.set_option(asio::socket_base::send_buffer_size(kFollowerSendBytes), ignored);
    events_ = &events;
    const bool is_page = events.stream().endpoint.path == kPageEventsPath;
    service_.open_pages.begins_to_follow(is_page ? OpenPages::Follower::page
                                                 : OpenPages::Follower::program);
    on_its_way_ = std::make_shared<const std::string>(head_of_events());
    write_events(*on_its_way_);
    ignore();
    events.add(id_, shared_from_this());
  }

  void write_events(const std::string& bytes) {
    end_within(kTimeToAnswer);
    asio::async_write(
        socket_, asio::buffer(bytes),
        [self = shared_from_this(), kept = on_its_way_](const error_code& error, std::size_t) {
          if (error) return self->close();
          self->on_its_way_ = nullptr;
          self->deadline_.expires_at(asio::steady_timer::time_point::max());
          if (!self->events_) return;
          const EventFeed& feed = self->events_->feed();
          if (!feed.is_over() || self->seen_ != feed.version()) return self->offer();
          self->stop_following();
          self->leave();
        });
  }

  void stop_following() {
    if (events_ == nullptr) return;
    events_->remove(id_);
    events_ = nullptr;
    service_.open_pages.stops_to_follow();
  }

  void leave() {
    if (is_closed_) return;
    sent_ = {};
    enter(Phase::leaving);
    end_within(kTimeToLeave);
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    ignore();
  }

  // Reads what the client sends, until it closes. Once for a connection.
  void ignore() {
    if (std::exchange(is_ignoring_, true)) return;
    read_on();
  }

  void read_on() {
    socket_.async_read_some(asio::buffer(piece_), [self = shared_from_this()](
                                                      const error_code& error, std::size_t count) {
      self->ignored_ += count;
      error || self->ignored_ > kMostIgnoredBytes ? self->close() : self->read_on();
    });
  }

  Service& service_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  const ConnectionTable::Id id_;
  Phase phase_ = Phase::asking;
  std::atomic<bool> is_closed_{false};  // also read by the thread that renders
  std::array<char, 1024> piece_{};
  std::string received_;
  std::string sent_;
  std::size_t ignored_ = 0;
  bool is_ignoring_ = false;
  Broadcast* events_ = nullptr;  // that it follows
  EventFeed::Version seen_ = EventFeed::kNothing;
  std::shared_ptr<const std::string> on_its_way_;
};

void Service::close(std::optional<ConnectionTable::Id> id) {
  const auto found = id ? open.find(*id) : open.end();
  if (found == open.end()) return;
  const std::shared_ptr<Connection> connection = found->second;
  connection->close();
}

Broadcast::Broadcast(Service& service, const Stream& stream)
    : service_(service), stream_(stream), pause_(service.io) {}

void Broadcast::add(ConnectionTable::Id id, std::shared_ptr<Connection> connection) {
  followers_.emplace(id, std::move(connection));
  make();
}

void Broadcast::remove(ConnectionTable::Id id) {
  followers_.erase(id);
  if (followers_.empty()) pause_.cancel();
}

void Broadcast::make() {
  if (std::exchange(is_making_, true)) return;
  asio::post(service_.pages, [this] {
    asio::post(service_.io, [this, now = moment()]() mutable { tell(std::move(now)); });
  });
}

// On the thread that renders.
Broadcast::Moment Broadcast::moment() const {
  try {
    const Served served = service_.source();
    const bool is_over = served.snapshot->state == JobState::finished;
    return {stream_.parts(served), is_over ? EventsGoOn::no : EventsGoOn::yes};
  } catch (const std::exception&) {
    return {};  // for want of memory; the next time there may be more
  }
}

void Broadcast::tell(Moment moment) {
  is_making_ = false;
  feed_.take(std::move(moment.parts), moment.go_on);
  const auto followers = followers_;  // who is told the end leaves
  for (const auto& [id, follower] : followers) follower->offer();
  if (!followers_.empty()) wait();
}

void Broadcast::wait() {
  pause_.expires_after(kEventPeriod);
  pause_.async_wait([this](const error_code& error) {
    if (!error && !followers_.empty()) make();
  });
}

// Takes connections in. On the I/O thread.
class Door {
 public:
  explicit Door(Service& service) : service_(service), acceptor_(service.io), pause_(service.io) {}

  // Binds; `address_in_use` is worth another try.
  error_code open(const tcp::endpoint& at) {
    error_code error;
    acceptor_.open(at.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(at, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    if (error) close();
    return error;
  }
  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

  void wait() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) return recover(error);
      wait();
      take_in(std::move(socket));
    });
  }

  void close() {
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
  }

 private:
  void take_in(tcp::socket socket) {
    error_code error;
    const tcp::endpoint peer = socket.remote_endpoint(error);
    if (error) return;
    const auto admission = service_.table.admit(peer.address().to_v4().to_uint());
    service_.close(admission.evicted);
    const auto connection = std::make_shared<Connection>(service_, std::move(socket), admission.id);
    service_.open.emplace(admission.id, connection);
    connection->start();
  }

  // Mostly the process has no descriptor left for the client that waits outside.
  void recover(const error_code& error) {
    const auto evicted = is_short_of_descriptors(error) ? service_.table.evict() : std::nullopt;
    if (evicted) {
      service_.close(evicted);
      return wait();
    }
    pause_.expires_after(kPauseAfterError);
    pause_.async_wait([this](const error_code&) {
      if (acceptor_.is_open()) wait();
    });
  }

  Service& service_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
};

ConnectionLimits limits_of_this_process() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  return connection_limits(files.rlim_cur);
}

std::string name_of_this_machine() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

Status cannot_listen(const std::string& address, const error_code& error) {
  const bool is_busy = error == asio::error::address_in_use;
  return unavailable("http: cannot listen on ", address,
                     is_busy ? ": the port is already in use" : ": " + error.message(),
                     "; choose another one (COX_HTTP_PORT=...), 0 for any free one, or switch the "
                     "pages off (COX_HTTP_ENABLED=off)");
}

}  // namespace

// The two threads and what runs on them.
class HttpServer::Threads {
 public:
  Threads(const HttpConfig& config, Source source)
      : service_(std::move(source), access_of(config, name_of_this_machine()),
                 limits_of_this_process()),
        door_(service_) {}

  ~Threads() {
    if (io_.joinable()) {
      asio::post(service_.io, [this] { stop(); });
      io_.join();
    }
    service_.pages.join();
  }

  Door& door() { return door_; }
  OpenPages& open_pages() { return service_.open_pages; }

  // REQUIRES: the door is open.
  void start() {
    asio::post(service_.pages, [] {
      ::pthread_setname_np(::pthread_self(), "cox-pages");
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kPagesPriority);
    });
    door_.wait();
    io_ = std::thread([this] { run(); });
  }

 private:
  // Returns when stop() has been called and the last connection has ended.
  void run() {
    ::pthread_setname_np(::pthread_self(), "cox-http");
    for (;;) {
      try {
        service_.io.run();
        return;
      } catch (const std::exception&) {
        // One connection could not be served, for want of memory. The others go on.
      }
    }
  }

  void stop() {
    door_.close();
    const auto open = service_.open;
    for (const auto& [id, connection] : open) connection->stop();
  }

  Service service_;
  Door door_;
  std::thread io_;
};

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpConfig& config, Source source,
                                                      BusyPort busy) {
  if (Status exposed = check_exposure(config); !exposed.ok()) return exposed;
  const std::string host = config.host == "localhost" ? "127.0.0.1" : config.host;
  const asio::ip::address address = asio::ip::make_address_v4(host);
  const io::SignalsBlocked no_signals;
  auto threads = std::make_unique<Threads>(config, std::move(source));
  error_code error = threads->door().open({address, config.port});
  if (error == asio::error::address_in_use && busy == BusyPort::take_another)
    error = threads->door().open({address, 0});
  if (error) return cannot_listen(host + ":" + std::to_string(config.port), error);

  std::unique_ptr<HttpServer> server(new HttpServer);
  server->host_ = host;
  server->port_ = threads->door().port();
  server->threads_ = std::move(threads);
  server->threads_->start();
  return server;
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const Config& config,
                                                      const TelemetryState& state, BusyPort busy) {
  auto serve = [&state, settings = settings_of(config)] {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    return Served{state.snapshot(), UnixTime{now.count()}, settings};
  };
  return start(config.http, std::move(serve), busy);
}

HttpServer::~HttpServer() = default;

void HttpServer::wait_for_last_look() {
  threads_->open_pages().wait_for_last_look(OpenPages::Clock::now());
}

std::string HttpServer::url() const {
  const std::string shown = host_ == "0.0.0.0" ? "127.0.0.1" : host_;
  return "http://" + shown + ":" + std::to_string(port_);
}

}  // namespace cox::metrics
