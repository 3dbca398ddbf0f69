#include "metrics/http/service.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "metrics/http/event_feed.h"
#include "metrics/http/message.h"
#include "metrics/routes.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Phase = ConnectionTable::Phase;
using Milliseconds = std::chrono::milliseconds;

// Deadlines, however slowly bytes come: for the request after connecting, for rendering and sending
// the answer after the request, and for the client to close after the answer. A follower of events
// has kTimeToAnswer for each piece.
constexpr Milliseconds kTimeToAsk(5000);
constexpr Milliseconds kTimeToAnswer(10000);
constexpr Milliseconds kTimeToLeave(500);
// The deadline of an answer when the server stops.
constexpr Milliseconds kLastTimeToAnswer(1000);
// A page that refreshes itself fetches again within this time.
constexpr Milliseconds kTimeToComeBack = kStatusRefresh + Milliseconds(1000);
// Bytes that are read and dropped after the request. Closing a socket with unread bytes may destroy
// the answer before the client has it.
constexpr std::size_t kMostIgnoredBytes = std::size_t{64} << 10;
// The period of updates to followers. Parts are rendered once for all followers, and only if there
// are any.
constexpr Milliseconds kEventPeriod(1000);
constexpr std::size_t kMostFollowers = 64;    // of all streams together
constexpr int kFollowerSendBytes = 64 << 10;  // the system's send buffer for each follower

Response answer(const Request& request, const Service::Source& source) {
  try {
    return respond(request, source());
  } catch (const std::exception& error) {
    return refusal(500, fmt::format("internal error: {}", error.what()));
  }
}

// Runs the work on the rendering thread. Without memory the work is dropped, and the client's
// deadline closes the connection.
void render(Service& service, auto work) {
  asio::post(service.pages, [work = std::move(work)]() mutable {
    try {
      work();
    } catch (const std::bad_alloc&) {
    }
  });
}

}  // namespace

// Broadcast renders the parts of one stream about once a second while the stream has followers, on
// the rendering thread, and offers the parts to the followers. All other functions run on the I/O
// thread.
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

// Connection serves one request of one client. Every pending operation keeps the object alive. Runs
// on the I/O thread, except for rendering.
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

  // Sends the changes since the last update, unless that update is still being sent.
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
    render(service_, [self = shared_from_this(), request, part]() mutable {
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
      return send(refusal(503, fmt::format("expected at most {} followers of events at a time, "
                                           "found as many already; reload the page instead",
                                           kMostFollowers)),
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

  // Reads and drops further bytes until the client closes. Called once for a connection.
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
  std::atomic<bool> is_closed_{false};  // also read by the rendering thread
  std::array<char, 1024> piece_{};
  std::string received_;
  std::string sent_;
  std::size_t ignored_ = 0;
  bool is_ignoring_ = false;
  Broadcast* events_ = nullptr;  // the stream that the client follows
  EventFeed::Version seen_ = EventFeed::kNothing;
  std::shared_ptr<const std::string> on_its_way_;
};

Service::Service(Source made_from, Access who, ConnectionLimits limits)
    : source(std::move(made_from)),
      access(std::move(who)),
      open_pages(kTimeToComeBack),
      table(limits) {
  for (const Stream& stream : streams())
    broadcasts.push_back(std::make_unique<Broadcast>(*this, stream));
}

Service::~Service() = default;

void Service::take_in(tcp::socket socket) {
  error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;
  const auto admission = table.admit(peer.address().to_v4().to_uint());
  close(admission.evicted);
  const auto connection = std::make_shared<Connection>(*this, std::move(socket), admission.id);
  open.emplace(admission.id, connection);
  connection->start();
}

bool Service::make_room() {
  const auto evicted = table.evict();
  close(evicted);
  return evicted.has_value();
}

void Service::stop() {
  const auto all = open;
  for (const auto& [id, connection] : all) connection->stop();
}

void Service::close(std::optional<ConnectionTable::Id> id) {
  const auto found = id ? open.find(*id) : open.end();
  if (found == open.end()) return;
  const std::shared_ptr<Connection> connection = found->second;
  connection->close();
}

Broadcast* Service::broadcast_at(std::string_view path) const {
  for (const auto& broadcast : broadcasts) {
    if (broadcast->stream().endpoint.path == path) return broadcast.get();
  }
  return nullptr;
}

std::size_t Service::followers() const {
  std::size_t count = 0;
  for (const auto& broadcast : broadcasts) count += broadcast->followers();
  return count;
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
  render(service_, [this] {
    asio::post(service_.io, [this, now = moment()]() mutable { tell(std::move(now)); });
  });
}

// Runs on the rendering thread.
Broadcast::Moment Broadcast::moment() const {
  try {
    const Served served = service_.source();
    const bool is_over = served.snapshot->state == JobState::finished;
    return {stream_.parts(served), is_over ? EventsGoOn::no : EventsGoOn::yes};
  } catch (const std::exception&) {
    return {};  // out of memory; the next update may succeed
  }
}

void Broadcast::tell(Moment moment) {
  is_making_ = false;
  feed_.take(std::move(moment.parts), moment.go_on);
  const auto followers = followers_;  // a copy, because offer() may remove a follower
  for (const auto& [id, follower] : followers) follower->offer();
  if (!followers_.empty()) wait();
}

void Broadcast::wait() {
  pause_.expires_after(kEventPeriod);
  pause_.async_wait([this](const error_code& error) {
    if (!error && !followers_.empty()) make();
  });
}

}  // namespace cox::metrics
