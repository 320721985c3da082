// engine/observe/metrics_server.h: GET /metrics for a Prometheus server, and GET /healthz: one thread, one client at a
// time, everything else refused.
//
// It answers from a copy, so that a scrape never waits for a step, nor a step for a scrape. Written out here, since the
// distribution's HTTP library would bring OpenSSL and brotli into the binary to serve one page.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace keel {

class MetricsServer {
public:
    // `address` is numeric, IPv4 or IPv6; port 0 takes a free one. Throws (ExitCode::usage) if it cannot listen there.
    MetricsServer(const std::string& address, int port, std::size_t capacity = 1 << 14);
    ~MetricsServer();
    MetricsServer(const MetricsServer&) = delete;
    MetricsServer& operator=(const MetricsServer&) = delete;

    // What is answered from now on. Never waits: while a client's answer is being copied, the older text stays.
    // Allocates nothing up to `capacity` bytes.
    void publish(std::string_view text);
    int port() const { return port_; }

private:
    void serve();
    void answer(int client);

    int listener_ = -1, wake_ = -1, port_ = 0;
    std::mutex mutex_;
    std::string text_;  // guarded by mutex_
    std::thread thread_;
};

}  // namespace keel
