// What a Prometheus server scrapes: the text, the file, the port.
#include "engine/observe/prometheus.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>

#include "engine/observe/metrics.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "tests/temp_folder.h"

using namespace keel;
namespace fs = std::filesystem;

namespace {

const Warn no_warning = [](const std::string& text) { ADD_FAILURE() << text; };

// What a server answers to bytes of a client's.
std::string ask(int port, const std::string& request) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET, at.sin_port = htons(static_cast<std::uint16_t>(port)),
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::string out;
    if (connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 &&
        send(fd, request.data(), request.size(), MSG_NOSIGNAL) >= 0) {
        char some[4096];
        for (ssize_t n; (n = recv(fd, some, sizeof some, 0)) > 0;) out.append(some, static_cast<std::size_t>(n));
    }
    close(fd);
    return out;
}
std::string get(int port, const std::string& path) {
    return ask(port, "GET " + path + " HTTP/1.1\r\nHost: here\r\n\r\n");
}

}  // namespace

TEST(PrometheusText, IsTheExpositionFormat) {
    PrometheusText text;
    text.begin("run", "r1");
    text.family("keel_train_loss", "gauge", "Mean token loss of the last optimiser step (nats).").sample(2.5);
    text.family("keel_odd", "gauge", "a \\ and\na \"quote\"")
        .sample(1e-7, "set", "a \\, a \" and\na line", "rank", "0")
        .sample(NAN, "set", "b");
    EXPECT_EQ(text.text(),
              "# HELP keel_train_loss Mean token loss of the last optimiser step (nats).\n"
              "# TYPE keel_train_loss gauge\n"
              "keel_train_loss{run=\"r1\"} 2.5\n"
              "# HELP keel_odd a \\\\ and\\na \"quote\"\n"
              "# TYPE keel_odd gauge\n"
              "keel_odd{run=\"r1\",set=\"a \\\\, a \\\" and\\na line\",rank=\"0\"} 1e-07\n"
              "keel_odd{run=\"r1\",set=\"b\"} NaN\n");
    text.begin({}, {});
    text.family("x", "gauge", "h").sample(INFINITY).sample(-INFINITY, "a", "b").sample(3);
    EXPECT_EQ(text.text(), "# HELP x h\n# TYPE x gauge\nx +Inf\nx{a=\"b\"} -Inf\nx 3\n");
}

TEST(PrometheusText, CountsAHistogramUpToEachBound) {
    Histogram seconds;
    for (const double s : {0.5, 0.5000001, 1000.0}) seconds.add(s);
    seconds.add(NAN);  // is in no bucket, and would spoil the sum for good
    PrometheusText text;
    text.begin("run", "r1");
    text.family("keel_step_seconds", "histogram", "h").histogram(seconds);
    const std::string& all = text.text();
    for (const char* line :
         {"keel_step_seconds_bucket{run=\"r1\",le=\"0.2\"} 0\n", "keel_step_seconds_bucket{run=\"r1\",le=\"0.5\"} 1\n",
          "keel_step_seconds_bucket{run=\"r1\",le=\"1\"} 2\n", "keel_step_seconds_bucket{run=\"r1\",le=\"300\"} 2\n",
          "keel_step_seconds_bucket{run=\"r1\",le=\"+Inf\"} 3\n", "keel_step_seconds_sum{run=\"r1\"} 1001.0000001\n",
          "keel_step_seconds_count{run=\"r1\"} 3\n"})
        EXPECT_NE(all.find(line), std::string::npos) << line << "in\n" << all;
}

TEST(Metrics, AreOneWholeFileAtAnyMoment) {
    const test::TempFolder folder;
    Metrics metrics({}, folder.path(), {.planned_bytes = 4096, .sources = {{"books.tok", 0.01}}}, no_warning);
    EXPECT_EQ(metrics.path(), folder.path() / "metrics.prom");
    const Clock::time_point t0{};
    Ledger ledger(t0);
    metrics.publish(ledger);
    std::string text = read_file(metrics.path());
    EXPECT_EQ(text.find("keel_train_loss"), std::string::npos) << "before the first step there is no loss";
    metrics.step(
        {.progress = {.samples = 50, .steps = 7, .skipped = 1, .tokens = 1600, .tokens_squared = 0},
         .plan = {.first_sample = 42, .samples = 8, .micro_batch = 8, .num_micro_batches = 1, .lr = 1e-3},
         .result = {.loss = {NAN, 3}, .grad_norm = INFINITY, .applied = false, .loss_scale = 1024, .tokens = 256, .tokens_squared = 0},
         .seconds = 0.25,
         .tokens_per_second = 1024,
         .flops_per_second = 2e9,
         .peak_share = 0.5,
         .total_flops = 3e12,
         .joules = 20,
         .watts = 80,
         .total_joules = 140});
    metrics.eval({.loss = {30, 10}});
    metrics.saved(1700000000.5);
    metrics.publish(ledger);
    text = read_file(metrics.path());
    const std::string run = folder.path().filename();
    for (const std::string line :
         {"keel_step{run=\"RUN\"} 7\n", "keel_samples_total{run=\"RUN\"} 50\n", "keel_tokens_total{run=\"RUN\"} 1600\n",
          "keel_flops_total{run=\"RUN\"} 3e+12\n", "keel_skipped_steps_total{run=\"RUN\",reason=\"no_update\"} 1\n",
          "keel_train_loss{run=\"RUN\"} NaN\n", "keel_grad_norm{run=\"RUN\"} +Inf\n",
          "keel_learning_rate{run=\"RUN\"} 0.001\n", "keel_loss_scale{run=\"RUN\"} 1024\n", "keel_eval_loss{run=\"RUN\",set=\"valid\"} 3\n",
          "keel_step_seconds_count{run=\"RUN\"} 1\n", "keel_tokens_per_second{run=\"RUN\"} 1024\n",
          "keel_model_flops_utilization{run=\"RUN\"} 0.5\n",
          "keel_device_memory_bytes{run=\"RUN\",kind=\"planned\",rank=\"0\"} 4096\n",
          "keel_checkpoint_last_success_timestamp_seconds{run=\"RUN\"} 1700000000.5\n",
          "keel_data_epoch{run=\"RUN\",source=\"books.tok\"} 0.5\n", "keel_energy_joules_total{run=\"RUN\"} 140\n",
          "keel_power_watts{run=\"RUN\"} 80\n"}) {
        std::string expected = line;
        expected.replace(expected.find("RUN"), 3, run);
        EXPECT_NE(text.find("\n" + expected), std::string::npos) << expected << "in\n" << text;
    }
    EXPECT_TRUE(text.ends_with('\n'));
    EXPECT_FALSE(fs::exists(metrics.path().string() + ".new"));
}

TEST(Metrics, ThatCannotBeWrittenAreToldOnceUntilTheyCan) {
    const test::TempFolder folder;
    std::vector<std::string> warnings;
    ObserveSection config;
    config.prometheus_file = folder / "gone/keel.prom";
    Metrics metrics(config, folder.path(), {}, [&](const std::string& text) { warnings.push_back(text); });
    const Ledger ledger;
    for (int i = 0; i < 3; ++i) metrics.publish(ledger);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("gone/keel.prom: No such file or directory; the run goes on"), std::string::npos)
        << warnings[0];
    fs::create_directory(folder / "gone");
    metrics.publish(ledger);
    EXPECT_EQ(warnings.size(), 1u);
    EXPECT_TRUE(fs::exists(metrics.path()));
}

TEST(MetricsServer, AnswersWithWhatWasPublishedLast) {
    MetricsServer server("127.0.0.1", 0);
    server.publish("first 1\n");
    server.publish("second 2\n");
    EXPECT_EQ(get(server.port(), "/metrics"),
              "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 9\r\n"
              "Connection: close\r\n\r\nsecond 2\n");
    EXPECT_TRUE(get(server.port(), "/metrics?x=1").ends_with("second 2\n"));
    EXPECT_TRUE(get(server.port(), "/healthz").ends_with("\r\n\r\nok\n"));
}

TEST(MetricsServer, RefusesEverythingElse) {
    MetricsServer server("127.0.0.1", 0);
    server.publish("secret\n");
    EXPECT_TRUE(get(server.port(), "/").starts_with("HTTP/1.1 404 "));
    EXPECT_TRUE(get(server.port(), "/metricsx").starts_with("HTTP/1.1 404 "));
    EXPECT_TRUE(get(server.port(), "/../metrics").starts_with("HTTP/1.1 404 "));
    EXPECT_TRUE(ask(server.port(), "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    EXPECT_EQ(ask(server.port(), std::string(100000, 'x')), "") << "a request without an end is left";
    EXPECT_TRUE(get(server.port(), "/metrics").starts_with("HTTP/1.1 200 ")) << "and the next is answered";
}

TEST(MetricsServer, LeavesAtOnceThoughAClientSaysNothing) {
    const auto start = Clock::now();
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    {
        MetricsServer server("127.0.0.1", 0);
        sockaddr_in at{};
        at.sin_family = AF_INET, at.sin_port = htons(static_cast<std::uint16_t>(server.port())),
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    }
    close(fd);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(60));  // it ends; the test's own limit says if not
}

TEST(MetricsServer, SaysWhyItCannotListen) {
    const auto message = [](const std::string& address, int port) -> std::string {
        try {
            const MetricsServer server(address, port);
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ExitCode::usage);
            return e.what();
        }
        return "";
    };
    const MetricsServer first("127.0.0.1", 0);
    EXPECT_EQ(message("127.0.0.1", first.port()),
              concat("--observe.http_port ", first.port(),
                     " on 127.0.0.1: Address already in use; another program, or another run, ",
                     "listens there: give another port, or 0 for none"));
    EXPECT_EQ(message("localhost", 9100).substr(0, 37), "--observe.http_address is \"localhost\"");
}
