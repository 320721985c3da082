#include "engine/observe/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr int client_ms = 2000;          // one that sends or takes nothing for so long is left
constexpr std::size_t most_request = 4096;

struct Address {
    sockaddr_storage storage{};
    socklen_t size = 0;
    sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Address parse_address(const std::string& text, int port) {
    Address out;
    auto& v4 = reinterpret_cast<sockaddr_in&>(out.storage);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(out.storage);
    if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
        v4.sin_family = AF_INET, v4.sin_port = htons(static_cast<std::uint16_t>(port)), out.size = sizeof v4;
    } else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
        v6.sin6_family = AF_INET6, v6.sin6_port = htons(static_cast<std::uint16_t>(port)), out.size = sizeof v6;
    } else {
        fail_usage("--observe.http_address is \"", text,
                   "\"; it must be a numeric address of this machine: 127.0.0.1 for ",
                   "itself alone, 0.0.0.0 for whoever reaches it");
    }
    return out;
}

// False if the wake-up came, or nothing for so long.
bool ready(int fd, short events, int wake, int ms = client_ms) {
    pollfd fds[2] = {{fd, events, 0}, {wake, POLLIN, 0}};
    return poll(fds, 2, ms) > 0 && fds[1].revents == 0;
}

std::string response(const char* status, const char* more, std::string_view type, std::string_view body) {
    return concat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "; charset=utf-8\r\nContent-Length: ", body.size(),
                  "\r\nConnection: close\r\n", more, "\r\n", body);
}

}  // namespace

MetricsServer::MetricsServer(const std::string& address, int port, std::size_t capacity) {
    text_.reserve(capacity);
    Address at = parse_address(address, port);
    listener_ = socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int yes = 1;  // a restart does not wait for the connections of the run before to be forgotten
    if (listener_ >= 0) setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (listener_ < 0 || bind(listener_, at.get(), at.size) != 0 || listen(listener_, 8) != 0) {
        const int why = errno;
        if (listener_ >= 0) close(listener_);
        fail_usage("--observe.http_port ", port, " on ", address, ": ", std::strerror(why),
                   why == EADDRINUSE
                       ? "; another program, or another run, listens there: give another port, or 0 for none"
                       : "");
    }
    getsockname(listener_, at.get(), &at.size);
    port_ = ntohs(at.storage.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(at.storage).sin_port
                                                  : reinterpret_cast<sockaddr_in6&>(at.storage).sin6_port);
    wake_ = eventfd(0, EFD_CLOEXEC);
    sigset_t every, before;  // signals are for the threads that know what to do with them
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

MetricsServer::~MetricsServer() {
    eventfd_write(wake_, 1);
    thread_.join();
    close(listener_), close(wake_);
}

void MetricsServer::publish(std::string_view text) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) text_.assign(text);
}

void MetricsServer::serve() {
    for (;;) {
        pollfd fds[2] = {{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
        if (fds[1].revents) return;
        const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client < 0) {  // it left again, or there are no descriptors: either way, not at once again
            ready(listener_, 0, wake_, 100);
            continue;
        }
        answer(client);
        close(client);
    }
}

void MetricsServer::answer(int client) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(client_ms);
    std::string request;
    while (request.find("\r\n\r\n") == std::string::npos) {
        char some[1024];
        if (!ready(client, POLLIN, wake_) || std::chrono::steady_clock::now() > deadline) return;
        const ssize_t n = recv(client, some, sizeof some, 0);
        if (n <= 0 || request.size() > most_request) return;
        request.append(some, static_cast<std::size_t>(n));
    }
    const std::string line = request.substr(0, request.find("\r\n"));
    const auto asks_for = [&](const std::string& path) {
        return line.starts_with("GET " + path + " ") || line.starts_with("GET " + path + "?");
    };
    std::string out;
    if (!line.starts_with("GET ")) {
        out = response("405 Method Not Allowed", "Allow: GET\r\n", "text/plain", "only GET\n");
    } else if (asks_for("/healthz")) {
        out = response("200 OK", "", "text/plain", "ok\n");
    } else if (asks_for("/metrics")) {
        std::string text;
        {
            const std::lock_guard lock(mutex_);
            text = text_;
        }
        out = response("200 OK", "", "text/plain; version=0.0.4", text);
    } else {
        out = response("404 Not Found", "", "text/plain", "only /metrics and /healthz\n");
    }
    for (std::size_t sent = 0; sent < out.size();) {
        if (!ready(client, POLLOUT, wake_) || std::chrono::steady_clock::now() > deadline) return;
        const ssize_t n = send(client, out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
        if (n <= 0) return;
        sent += static_cast<std::size_t>(n);
    }
    shutdown(client, SHUT_WR);
}

}  // namespace keel
