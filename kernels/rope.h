// kernels/rope.h: rotary position embedding, half-split layout: pairs are (i, i + rotary_dim / 2) within each head.
// Su et al. 2021, arXiv:2104.09864. Scalings: linear (Chen et al. 2023), llama3 (Llama 3.1 release), yarn (Peng et al.
// 2023, arXiv:2309.00071), longrope (Ding et al. 2024, arXiv:2402.13753). A rotation is orthogonal, so backward is the
// rotation by the opposite angle.
//
// Layout  x may have strided rows and is changed in place. T is float, bf16 or f16; angles, cos and sin are float,
//         computed in double when the table is made (a bf16 position is already wrong at 257).
// Order   asynchronous on `stream`. Same inputs, same bits, on any number of threads.
// Errors  throws Error before launching if shapes disagree or a position is outside of the table; of positions in the
//         memory of a GPU the latter is not seen here: they are checked where data enters.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

enum class RopeScaling : std::uint8_t { none, linear, llama3, yarn, longrope };

struct RopeConfig {
    double base = 10000.0;
    RopeScaling scaling = RopeScaling::none;
    double factor = 1.0;                     // linear, llama3, yarn, longrope
    double original_max_position = 0.0;      // llama3, yarn, longrope: the context length before scaling
    double low_freq_factor = 1.0;            // llama3
    double high_freq_factor = 4.0;           // llama3
    double beta_fast = 32.0, beta_slow = 1.0;  // yarn
    // yarn, longrope; 0 means 0.1 ln(factor) + 1 of yarn, sqrt(1 + ln(factor) / ln(original_max_position)) of longrope
    double attention_factor = 0.0;
    std::vector<double> divisors = {};  // longrope: one for each pair
};

// Angle per position of pair i in [0, rotary_dim / 2), after scaling.
double rope_frequency(const RopeConfig& config, std::int64_t rotary_dim, std::int64_t i);
// What cos and sin are multiplied by: 1 but for yarn and longrope.
double rope_attention_factor(const RopeConfig& config);
// table[p, :] = cos of the rotary_dim / 2 angles of position p, then their sines.
void rope_table(const RopeConfig& config, View<float> table);  // [positions, rotary_dim]  written

// How some rows were turned, for an op that turns their gradients back on its way (kernels/attention.h).
struct RopeAngles {
    View<const float> table;             // [positions, rotary_dim]  read; as in Rope
    View<const std::int32_t> positions;  // [rows]                   read
};

template <class T> struct Rope {
    View<T> x;                            // [tokens, heads * head_dim]  rotated in place
    View<const float> table;              // [positions, rotary_dim]     read; rotary_dim <= head_dim, the rest passes by
    View<const std::int32_t> positions;   // [tokens]                    read; each in [0, positions)
    std::int64_t head_dim;
};
template <class T> void rope_forward(Stream& stream, const Rope<T>& args);
// x holds the gradient. What attention_backward turns back itself does not come here.
template <class T> void rope_backward(Stream& stream, const Rope<T>& args);

// Both, as a device runs them: by the angle or by its opposite.
template <class T> struct RopeTurn {
    Rope<T> rope;
    float sign;  // 1 forward, -1 backward
};

}  // namespace keel
