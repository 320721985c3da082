// engine/observe/prometheus.h: the text that a Prometheus server scrapes, format 0.0.4: families of samples, one value
// each.
//
//     text.begin("run", "r1");                                           // a label of every sample
//     text.family("keel_train_loss", "gauge", "Mean token loss of the last step (nats).").sample(2.5);
//     text.family("keel_eval_loss", "gauge", "…").sample(2.4, "set", "valid");
//     text.text();
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace keel {

// How often a value was at most each bound, and their sum.
class Histogram {
public:
    void add(double value);

private:
    friend class PrometheusText;
    // Seconds of a step: of a toy's to a very large model's.
    static constexpr std::array<double, 13> bounds = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300};
    std::array<std::int64_t, bounds.size()> at_most_{};
    std::int64_t count_ = 0;
    double sum_ = 0;
};

// Allocates when made, and afterwards only for a text that is longer than any before and than `capacity`.
class PrometheusText {
public:
    explicit PrometheusText(std::size_t capacity = 1 << 14) { text_.reserve(capacity); }

    void begin(std::string_view label, std::string_view value);
    // Of samples that follow. Names are the caller's to keep to [a-zA-Z_:][a-zA-Z0-9_:]*; help and values are escaped.
    PrometheusText& family(std::string_view name, std::string_view type, std::string_view help);
    PrometheusText& sample(double value, std::string_view label = {}, std::string_view label_value = {},
                           std::string_view label2 = {}, std::string_view label2_value = {});
    PrometheusText& histogram(const Histogram& histogram);
    const std::string& text() const { return text_; }

private:
    void open(std::string_view suffix);
    void label(std::string_view name, std::string_view value);
    void close(double value);
    void escaped(std::string_view text, bool quotes);

    std::string text_;
    std::string_view name_, label_, label_value_;  // the caller's, until the next begin()
    bool first_label_ = true;
};

}  // namespace keel
