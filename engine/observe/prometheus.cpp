#include "engine/observe/prometheus.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace keel {
namespace {

struct Digits {
    char text[40];
    std::size_t size;
    explicit Digits(double value)
        : size(static_cast<std::size_t>(std::to_chars(text, text + sizeof text, value).ptr - text)) {}
    std::string_view view() const { return {text, size}; }
};

}  // namespace

void Histogram::add(double value) {
    if (std::isnan(value)) return;
    for (std::size_t i = 0; i < bounds.size(); ++i) at_most_[i] += value <= bounds[i] ? 1 : 0;
    ++count_;
    sum_ += value;
}

void PrometheusText::begin(std::string_view label, std::string_view value) {
    text_.clear();
    label_ = label, label_value_ = value;
}

PrometheusText& PrometheusText::family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_.append("# HELP ").append(name).append(" ");
    escaped(help, false);
    text_.append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
    return *this;
}

PrometheusText& PrometheusText::sample(double value, std::string_view label1, std::string_view value1,
                                       std::string_view label2, std::string_view value2) {
    open({});
    if (!label1.empty()) label(label1, value1);
    if (!label2.empty()) label(label2, value2);
    close(value);
    return *this;
}

PrometheusText& PrometheusText::histogram(const Histogram& h) {
    for (std::size_t i = 0; i <= h.bounds.size(); ++i) {
        const bool all = i == h.bounds.size();
        open("_bucket");
        label("le", all ? "+Inf" : Digits(h.bounds[i]).view());
        close(static_cast<double>(all ? h.count_ : h.at_most_[i]));
    }
    open("_sum"), close(h.sum_);
    open("_count"), close(static_cast<double>(h.count_));
    return *this;
}

void PrometheusText::open(std::string_view suffix) {
    text_.append(name_).append(suffix);
    first_label_ = true;
    if (!label_.empty()) label(label_, label_value_);
}

void PrometheusText::label(std::string_view name, std::string_view value) {
    text_.append(first_label_ ? "{" : ",").append(name).append("=\"");
    first_label_ = false;
    escaped(value, true);
    text_ += '"';
}

void PrometheusText::close(double value) {
    if (!first_label_) text_ += '}';
    text_ += ' ';
    if (std::isfinite(value)) text_.append(Digits(value).view());
    else text_.append(std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
    text_ += '\n';
}

void PrometheusText::escaped(std::string_view text, bool quotes) {
    for (const char c : text) {
        if (c == '\n') text_.append("\\n");
        else if (c == '\\' || (c == '"' && quotes)) (text_ += '\\') += c;
        else text_ += c;
    }
}

}  // namespace keel
