// engine/model/narrow.h: buffers are sized for the largest micro-batch; a smaller one works in their first rows.
#pragma once

#include "engine/model/block.h"

namespace keel {

// `rows` of the residual stream, `tokens` of the rest.
template <class T> BlockSaved<T> narrow(BlockSaved<T> s, std::int64_t rows, std::int64_t tokens) {
    const auto cut = [](auto& view, std::int64_t n) { view = view.rows(0, n); };
    for (auto* v : {&s.in, &s.attn_norm, &s.mid, &s.ffn_norm}) cut(*v, rows);
    for (auto* v : {&s.attn_rstd, &s.ffn_rstd}) cut(*v, rows);
    for (auto* v : {&s.qkv, &s.att, &s.gate_up, &s.act}) cut(*v, tokens);
    if (s.qk) cut(*s.qk, tokens), cut(*s.q_rstd, tokens), cut(*s.k_rstd, tokens);
    s.lse = View<float>(s.lse.data(), {s.lse.dim(0), tokens});
    return s;
}
template <class T> BlockTemp<T> narrow(BlockTemp<T> t, std::int64_t rows, std::int64_t tokens) {
    t.dact = t.dact.rows(0, tokens), t.dnorm = t.dnorm.rows(0, rows);
    t.datt = t.datt.rows(0, tokens), t.dqkv = t.dqkv.rows(0, tokens);
    if (t.row_sums) t.row_sums = t.row_sums->rows(0, tokens);
    return t;
}
template <class T> Meeting<T> narrow(Meeting<T> m, std::int64_t tokens) {
    if (m.whole_a) m.whole_a = m.whole_a->rows(0, tokens), m.whole_b = m.whole_b->rows(0, tokens);
    return m;
}
template <class T> BlockMeetings<T> narrow(const BlockMeetings<T>& m, std::int64_t tokens) {
    return {narrow(m.attention, tokens), narrow(m.ffn, tokens)};
}

}  // namespace keel
