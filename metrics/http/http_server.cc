#include "metrics/http/http_server.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "coordinator/io/limits.h"
#include "coordinator/io/signals_blocked.h"
#include "coordinator/io/thread.h"
#include "metrics/http/access.h"
#include "metrics/http/connections.h"
#include "metrics/http/service.h"

namespace cox::metrics {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPauseAfterError(100);  // before accepting again
// A low priority: training comes first when all cores are busy.
constexpr int kPagesPriority = 10;

bool is_short_of_descriptors(const error_code& error) {
  return error == asio::error::no_descriptors || error == asio::error::no_buffer_space ||
         error == asio::error::no_memory || error.value() == ENFILE;
}

// Door accepts connections. On the I/O thread.
class Door {
 public:
  explicit Door(Service& service) : service_(service), acceptor_(service.io), pause_(service.io) {}

  // Binds. A caller may retry after `address_in_use`.
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
      service_.take_in(std::move(socket));
    });
  }

  void close() {
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
  }

 private:
  // Closes a connection if the process has no descriptor left for the waiting client; else pauses.
  void recover(const error_code& error) {
    if (is_short_of_descriptors(error) && service_.make_room()) return wait();
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
  return unavailable(
      "http: cannot listen on ", address,
      is_busy ? ": the port is already in use" : fmt::format(": {}", io::errno_text(error.value())),
      "; choose another one (COX_HTTP_PORT=...), 0 for any free one, or switch the "
      "pages off (COX_HTTP_ENABLED=off)");
}

}  // namespace

// The server's two threads and their work.
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
  Status start() {
    asio::post(service_.pages, [] {
      ::pthread_setname_np(::pthread_self(), "cox-pages");
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kPagesPriority);
    });
    door_.wait();
    Result<std::thread> started = io::start_thread("http", [this] { run(); });
    if (started.ok()) io_ = *std::move(started);
    return started.status();
  }

 private:
  // Returns after stop() and the end of the last connection.
  void run() {
    ::pthread_setname_np(::pthread_self(), "cox-http");
    for (;;) {
      try {
        service_.io.run();
        return;
      } catch (const std::exception&) {
        // Out of memory ends one connection only.
      }
    }
  }

  void stop() {
    door_.close();
    service_.stop();
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
  std::unique_ptr<Threads> threads;
  try {
    threads = std::make_unique<Threads>(config, std::move(source));
  } catch (const boost::system::system_error&) {
    return resource_exhausted("http: its thread could not be started: ", io::thread_limit_text());
  }
  error_code error = threads->door().open({address, config.port});
  if (error == asio::error::address_in_use && busy == BusyPort::take_another)
    error = threads->door().open({address, 0});
  if (error) return cannot_listen(fmt::format("{}:{}", host, config.port), error);

  std::unique_ptr<HttpServer> server(new HttpServer);
  server->host_ = host;
  server->port_ = threads->door().port();
  server->threads_ = std::move(threads);
  const Status started = server->threads_->start();
  if (!started.ok()) return started;
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
  return fmt::format("http://{}:{}", shown, port_);
}

}  // namespace cox::metrics
