#include "engine/observe/log_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace keel {
namespace {

std::size_t length_of(std::span<char> out, int written) {
    return written < 0 ? 0 : std::min(static_cast<std::size_t>(written), out.size() - 1);
}

}  // namespace

NumberText number_text(const char* format, double value) {
    NumberText out{};
    if (std::isnan(value)) std::snprintf(out.text, sizeof out.text, "NaN");
    else if (std::isinf(value)) std::snprintf(out.text, sizeof out.text, value > 0 ? "Inf" : "-Inf");
    else {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        std::snprintf(out.text, sizeof out.text, format, value);
#pragma GCC diagnostic pop
    }
    return out;
}

NumberText duration_text(double seconds) {
    NumberText out{};
    if (!(seconds >= 0) || seconds > 3.6e9) {
        out.text[0] = '-';
        return out;
    }
    const auto whole = static_cast<long long>(seconds + 0.5);
    std::snprintf(out.text, sizeof out.text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    return out;
}

std::size_t format_step(std::span<char> out, const StepLine& line) {
    const NumberText peak = line.peak > 0 ? number_text("%.1f", 100 * line.flops_per_second / line.peak) : NumberText{"-"};
    return length_of(
        out, std::snprintf(out.data(), out.size(),
                           "step %lld/%lld progress_%% %s loss %s grad_norm %s lr %s tokens/s %s TFLOP/s %s peak_%% %s "
                           "left %s skipped %lld%s%s\n",
                           static_cast<long long>(line.step), static_cast<long long>(line.total_steps),
                           number_text("%.1f", line.progress_percent).text, number_text("%.4f", line.loss).text,
                           number_text("%.4g", line.grad_norm).text, number_text("%.3e", line.lr).text,
                           number_text("%.0f", line.tokens_per_second).text,
                           number_text("%.4f", line.flops_per_second / 1e12).text, peak.text,
                           duration_text(line.seconds_left).text, static_cast<long long>(line.skipped),
                           line.loss_scale > 0 ? " loss_scale " : "",
                           (line.loss_scale > 0 ? number_text("%.9g", line.loss_scale) : NumberText{}).text));
}

std::size_t format_eval(std::span<char> out, std::int64_t step, const EvalResult& eval) {
    const NumberText bits = eval.bytes > 0 ? number_text("%.4f", eval.bits_per_byte()) : NumberText{"-"};
    return length_of(
        out, std::snprintf(out.data(), out.size(), "eval step %lld loss %s perplexity %s bits/byte %s tokens %lld seconds %s\n",
                           static_cast<long long>(step), number_text("%.4f", eval.loss.mean()).text,
                           number_text("%.3f", eval.perplexity()).text, bits.text,
                           static_cast<long long>(eval.loss.count), number_text("%.2f", eval.seconds).text));
}

}  // namespace keel
