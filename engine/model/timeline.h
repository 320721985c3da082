// engine/model/timeline.h: the moments of one micro-batch on one rank, in the order the executor meets them. The memory
// plan speaks in these.
//
//   embed · attention(0) · ffn(0) · … · head · ffn backward(L-1) · attention backward(L-1) · … · embed backward · update
#pragma once

#include <cstdint>

#include "engine/memory/plan.h"

namespace keel {

class Timeline {
public:
    Timeline(MemoryPlan& plan, std::int64_t layers) : layers_(static_cast<int>(layers)) {
        embed = plan.moment("embedding");
        for (int i = 0; i < layers_; ++i) {
            plan.moment("block " + std::to_string(i) + ", attention forward");
            plan.moment("block " + std::to_string(i) + ", ffn forward");
        }
        head = plan.moment("output layer and loss");
        for (int i = layers_ - 1; i >= 0; --i) {
            plan.moment("block " + std::to_string(i) + ", ffn backward");
            plan.moment("block " + std::to_string(i) + ", attention backward");
        }
        embed_backward = plan.moment("embedding backward");
        update = plan.moment("optimizer");
    }

    int embed, head, embed_backward, update;
    int attn_forward(int i) const { return embed + 1 + 2 * i; }
    int ffn_forward(int i) const { return embed + 2 + 2 * i; }
    int ffn_backward(int i) const { return head + 1 + 2 * (layers_ - 1 - i); }
    int attn_backward(int i) const { return head + 2 + 2 * (layers_ - 1 - i); }

private:
    int layers_;
};

}  // namespace keel
