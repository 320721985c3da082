// engine/observe/log_line.h: the text of one step. The format is frozen: people parse it.
//
//   step 120/1000 progress_% 12.0 loss 3.4567 grad_norm 0.912 lr 3.000e-04 tokens/s 21840 TFLOP/s 0.412 peak_% 81.2 left 0:12:34 skipped 0
//   eval step 120 loss 3.4012 perplexity 30.000 bits/byte 2.1034 tokens 51200 seconds 1.25
//
// Pairs of a name and a value, one blank between any two words, always all of them, always in this order. Units are in the
// names. A number that is not finite is printed as NaN, Inf or -Inf; one that is not known as "-".
//   step       steps taken / steps of the whole run     tokens/s   real tokens (no padding) since the last line
//   loss       mean per target, in nats, of all steps   TFLOP/s    useful work by observe/flops.h
//              since the last line                      peak_%     of the matmul rate measured on this machine
//   grad_norm  before clipping, of this step            left       h:mm:ss at the recent rate, evaluation not counted
//   lr         used by this step                        skipped    steps so far that changed nothing
// In f16 one more: loss_scale, that of this step. More pairs may be added at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/progress.h"

namespace keel {

struct StepLine {
    std::int64_t step = 0, total_steps = 0;
    double progress_percent = 0;
    double loss = 0, grad_norm = 0, lr = 0;
    double tokens_per_second = 0, flops_per_second = 0;
    double peak = 0;          // FLOP/s; 0: not known
    double seconds_left = 0;  // negative: not known
    std::int64_t skipped = 0;
    double loss_scale = 0;    // 0: there is none
};

// Both write a line and its '\n' and end it with '\0'. Return the length. Nothing allocates.
inline constexpr std::size_t log_line_size = 320;
std::size_t format_step(std::span<char> out, const StepLine& line);
std::size_t format_eval(std::span<char> out, std::int64_t step, const EvalResult& eval);

// A number as `printf(format)` writes it, but NaN, Inf and -Inf always by these names.
struct NumberText {
    char text[40];
};
NumberText number_text(const char* format, double value);
// h:mm:ss; "-" if negative or not finite.
NumberText duration_text(double seconds);

}  // namespace keel
