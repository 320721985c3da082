// engine/parallel/layers.h: which transformer blocks each virtual stage of a pipeline holds.
//
// Virtual stage i is chunk i / stages of rank i % stages (pipeline.h). Ranges are contiguous and in order, the first
// holds the embedding and the last the final norm and the head. Whatever does not come out even is refused, with the
// options that would make it work: no layer is ever dropped or moved in silence.
#pragma once

#include <string>
#include <vector>

namespace keel {

struct LayerRange {
    int begin, end;        // blocks [begin, end)
    bool embedding, head;  // head: final norm and output matrix
    int size() const { return end - begin; }
    bool operator==(const LayerRange&) const = default;
};

struct LayerSplit {
    int layers = 0;                      // --model.layers
    int stages = 1;                      // --parallel.pp
    int chunks = 1;                      // --parallel.chunks
    int first = 0, last = 0;             // --parallel.first_layers, --parallel.last_layers of a rank; 0: not given
    bool count_embedding = false;        // --parallel.count_embedding: it counts as one layer
    bool count_head = false;             // --parallel.count_head: it counts as one layer
    // --parallel.layers: one word per virtual stage, divided by '|': E embedding, t block, L head and loss. x*3 repeats
    // a letter, (tt|)*3 a group; commas and spaces mean nothing. "Et*2|(t*3|)*2tL" is "Ett|ttt|ttt|tL".
    std::string layout{};
};

// [stages * chunks]
std::vector<LayerRange> layer_split(const LayerSplit& split);

// The stages of a layout with every repetition written out: "Et*2|tL" is {"Ett", "tL"}. Letters are E, t, m and L.
std::vector<std::string> expand_layout(const std::string& layout);

}  // namespace keel
