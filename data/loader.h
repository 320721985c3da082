// data/loader.h: samples of a Dataset as the arrays a model reads, prepared ahead on a thread of its own.
//
// The position in the data is the sample number and nothing else: next(first, count) gives the same bits whatever was
// asked before, with or without prefetch. hint() names what will be asked soon; a wrong hint costs time only. Nothing
// allocates after the constructor, on any thread. An error met while prefetching is thrown by the next() that asks for
// those samples.
//
// With reset_at_document a document is on its own: positions and the mask restart at its first token, and its last
// token predicts nothing (label -1). A row is a border too: a document that runs on from the row before starts anew.
// Without it a row is one text. What the mask of a token file leaves out is read and not predicted. A packed row may
// end in padding: id 0, label -1, seen by itself alone, and counted nowhere.
#pragma once

#include <cstdint>
#include <memory>

#include "data/dataset.h"
#include "kernels/base/view.h"

namespace keel {

struct Batch {
    View<const std::int32_t> ids;        // [count * seq_len]  rows one after the other
    View<const std::int32_t> labels;     // [count * seq_len]  the next token; -1 where there is none to predict
    View<const std::int32_t> positions;  // [count * seq_len]  from 0 at a row's or document's first token
    View<const std::int32_t> lo;         // [count * seq_len]  first key each query sees, as an index into these arrays
    std::int64_t loss_tokens;            // labels that are not -1
    std::int64_t sum_len, sum_len_sq;  // over the pieces of documents inside rows: sum of lengths, and of their squares
    std::int64_t first_sample, count;
};

struct LoaderSpec {
    std::int64_t max_count = 1;     // samples per call of next() at most: the micro-batch
    std::int64_t window = 0;        // a query sees this many keys, itself included; 0 sees all
    bool reset_at_document = true;
    std::int64_t prefetch = 2;      // batches prepared ahead; 0 has no thread
};

class Loader {
public:
    Loader(const Dataset& dataset, const LoaderSpec& spec);  // `dataset` must outlive it
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    // Samples [first_sample, first_sample + count). Valid until the following call of next(). Calls come from one
    // thread.
    const Batch& next(std::int64_t first_sample, std::int64_t count);

    // These will be asked soon. Ignored when as many batches are waiting as `prefetch` allows.
    void hint(std::int64_t first_sample, std::int64_t count);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace keel
