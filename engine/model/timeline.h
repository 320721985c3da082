// engine/model/timeline.h: the moments of one micro-batch on one rank, in the order the executor meets them. The memory
// plan speaks in these.
//
//   embed · attention(0) · ffn(0) · … · head · ffn backward(L-1) · attention backward(L-1) · … · embed backward · update
//
// With several pipeline chunks, each chunk's forward stands here once, then each chunk's backward, last chunk first. In what
// order a schedule mixes them does not matter: an action runs alone, so what lives within one may share memory with any
// other, and what waits between a forward and its backward lives always (engine/model/layout.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/memory/plan.h"
#include "engine/parallel/layers.h"

namespace keel {

class Timeline {
public:
    Timeline(MemoryPlan& plan, const std::vector<LayerRange>& chunks) : chunks_(chunks) {
        forward_.resize(chunks.size()), backward_.resize(chunks.size()), end_.resize(chunks.size());
        for (std::size_t c = 0; c < chunks.size(); ++c) {
            forward_[c] = plan.moment(chunks[c].embedding ? "embedding" : name("input", chunks[c].begin));
            for (int i = chunks[c].begin; i < chunks[c].end; ++i) {
                plan.moment(name("attention forward", i));
                plan.moment(name("ffn forward", i));
            }
            end_[c] = plan.moment(chunks[c].head ? "output layer and loss" : name("output", chunks[c].end - 1));
        }
        for (std::size_t c = chunks.size(); c-- > 0;) {
            backward_[c] = plan.moment(chunks[c].head ? "gradient of the output layer" : name("gradient in", chunks[c].end - 1));
            for (int i = chunks[c].end - 1; i >= chunks[c].begin; --i) {
                plan.moment(name("ffn backward", i));
                plan.moment(name("attention backward", i));
            }
            last_ = plan.moment(chunks[c].embedding ? "embedding backward" : name("gradient out", chunks[c].begin));
        }
        update = plan.moment("optimizer");
    }

    int update;
    int begin_forward(int c) const { return forward_[at(c)]; }    // embedding, or what a stage before sent
    int end_forward(int c) const { return end_[at(c)]; }          // head, or what the next stage gets
    int begin_backward(int c) const { return backward_[at(c)]; }
    int end_backward(int c) const { return ffn_backward(c, chunks_[at(c)].begin) + 2; }
    // `i` is the layer's number in the whole model.
    int attn_forward(int c, int i) const { return begin_forward(c) + 1 + 2 * (i - chunks_[at(c)].begin); }
    int ffn_forward(int c, int i) const { return begin_forward(c) + 2 + 2 * (i - chunks_[at(c)].begin); }
    int ffn_backward(int c, int i) const { return begin_backward(c) + 1 + 2 * (chunks_[at(c)].end - 1 - i); }
    int attn_backward(int c, int i) const { return begin_backward(c) + 2 + 2 * (chunks_[at(c)].end - 1 - i); }

private:
    static std::size_t at(int c) { return static_cast<std::size_t>(c); }
    static std::string name(const char* what, int layer) { return "block " + std::to_string(layer) + ", " + what; }

    std::vector<LayerRange> chunks_;
    std::vector<int> forward_, end_, backward_;
    int last_ = 0;
};

}  // namespace keel
