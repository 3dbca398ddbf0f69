#include "metrics/http_server.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace cox::metrics {

struct HttpServer::Context {
  Source source;
  std::mutex log_mutex;
  std::string log;  // what civetweb said while starting
  std::atomic<bool> started{false};
  mg_context* server = nullptr;

  static int on_request(mg_connection* connection);
  static int on_error(mg_connection* connection, int status, const char* message);
  static int on_log(const mg_connection* connection, const char* message);
};

namespace {

// No page may load or send anything elsewhere, or be framed.
constexpr const char* kSafety =
    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; img-src data:\r\n";

void send(mg_connection* connection, const Response& response, bool with_body) {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n", response.status,
                  mg_get_response_code_text(connection, response.status), response.content_type,
                  response.body.size());
  if (response.status == 405) out += "Allow: GET, HEAD\r\n";
  out += kSafety;
  out += "Connection: close\r\n\r\n";
  if (with_body) out += response.body;
  mg_write(connection, out.data(), out.size());
}

Response answer(const Request& request, const HttpServer::Source& source) {
  try {
    return respond(request, source());
  } catch (const std::exception& error) {
    return {500, "text/plain; charset=utf-8",
            std::string("internal error: ") + error.what() + "\n"};
  }
}

Result<std::string> listening_on(const HttpConfig& config) {
  const std::string host = config.host == "localhost" ? "127.0.0.1" : config.host;
  in_addr parsed{};
  if (inet_pton(AF_INET, host.c_str(), &parsed) != 1)
    return invalid_argument(
        "http.host: expected an IPv4 address such as 127.0.0.1 or 0.0.0.0, found \"" + config.host +
        "\"");
  return host;
}

Status cannot_listen(const std::string& address, const std::string& log) {
  const bool busy = log.find("in use") != std::string::npos;
  return unavailable("http: cannot listen on " + address +
                     (busy ? ": the port is already in use" : ": " + log) +
                     "; choose another one (COX_HTTP_PORT=...), 0 for any free one, or switch the "
                     "pages off (COX_HTTP_ENABLED=off)");
}

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

// Stops a server without its two seconds of waiting: its listening thread sleeps in poll() for that
// long and is not woken by mg_stop(), but by a connection.
void stop_promptly(mg_context* server, const std::string& host, std::uint16_t port) {
  std::atomic<bool> stopped{false};
  std::thread waker([&, address = address_of(host, port)] {
    while (!stopped) knock(address);
  });
  mg_stop(server);
  stopped = true;
  waker.join();
}

}  // namespace

int HttpServer::Context::on_request(mg_connection* connection) {
  const mg_request_info* info = mg_get_request_info(connection);
  const auto* context = static_cast<const Context*>(info->user_data);
  Request request;
  request.method = info->request_method != nullptr ? info->request_method : "";
  request.path = info->local_uri != nullptr ? info->local_uri : "";
  request.query = info->query_string != nullptr ? info->query_string : "";
  send(connection, answer(request, context->source), request.method != "HEAD");
  return 200;  // handled: civetweb looks no further
}

// Answers requests that civetweb refuses by itself, because its own answer would use a clock that
// is not thread-safe.
int HttpServer::Context::on_error(mg_connection* connection, int status, const char* message) {
  const std::string body = message != nullptr && *message != 0 ? message : "refused";
  send(connection, {status, "text/plain; charset=utf-8", body + "\n"}, true);
  return 0;
}

int HttpServer::Context::on_log(const mg_connection* connection, const char* message) {
  auto* context = static_cast<Context*>(mg_get_user_data(mg_get_context(connection)));
  if (context == nullptr || context->started) return 1;
  const std::lock_guard lock(context->log_mutex);
  context->log += std::string(message) + "; ";
  return 1;  // nothing goes to a file
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpConfig& config, Source source) {
  const Result<std::string> host = listening_on(config);
  if (!host.ok()) return host.status();
  std::unique_ptr<HttpServer> server(new HttpServer);
  server->host_ = *host;
  server->context_ = std::make_unique<Context>();
  server->context_->source = std::move(source);

  const std::string address = *host + ":" + std::to_string(config.port);
  const std::array<std::array<const char*, 2>, 9> settings = {{{"listening_ports", address.c_str()},
                                                               {"num_threads", "4"},
                                                               {"request_timeout_ms", "3000"},
                                                               {"max_request_size", "8192"},
                                                               {"enable_keep_alive", "no"},
                                                               {"connection_queue", "64"},
                                                               {"listen_backlog", "128"},
                                                               {"linger_timeout_ms", "500"},
                                                               {"enable_directory_listing", "no"}}};
  std::vector<const char*> options;
  for (const auto& setting : settings)
    options.insert(options.end(), setting.begin(), setting.end());
  options.push_back(nullptr);
  mg_callbacks callbacks{};
  callbacks.begin_request = Context::on_request;
  callbacks.http_error = Context::on_error;
  callbacks.log_message = Context::on_log;
  mg_context* started = mg_start(&callbacks, server->context_.get(), options.data());
  if (started == nullptr) return cannot_listen(address, server->context_->log);
  server->context_->server = started;
  server->context_->started = true;
  mg_server_port ports[1] = {};
  if (mg_get_server_ports(started, 1, ports) == 1)
    server->port_ = static_cast<std::uint16_t>(ports[0].port);
  return server;
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const Config& config,
                                                      const TelemetryState& state) {
  auto settings = settings_of(config);
  return start(config.http, [&state, settings = std::move(settings)] {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    return Served{state.snapshot(), UnixTime{now.count()}, settings};
  });
}

HttpServer::~HttpServer() {
  if (context_->server != nullptr) stop_promptly(context_->server, host_, port_);
}

std::string HttpServer::url() const {
  const std::string shown = host_ == "0.0.0.0" ? "127.0.0.1" : host_;
  return "http://" + shown + ":" + std::to_string(port_);
}

}  // namespace cox::metrics
