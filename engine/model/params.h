// engine/model/params.h: the parameters of a Llama-shaped model that one rank holds: names, shapes, where each lies in the
// flat buffers, and which part of the whole parameter it is.
//
// All parameters lie in one flat buffer, all gradients in another, each tensor at the same element offset in both, in the
// order of the gradient buckets (engine/parallel/buckets.h). The optimizer and the gradient norm see flat memory; the blocks
// see Views. Names, whole shapes and initial values do not depend on a layout: a value depends on (seed, name, element).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/parallel/buckets.h"
#include "engine/parallel/layout.h"
#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

// How the tensor-parallel ranks hold a parameter, and what their gradients of it are.
enum class Held : std::uint8_t {
    cut,      // each holds a part of its own
    same,     // each holds all of it, and computes the same gradient
    partial,  // each holds all of it; its gradient is the sum over the ranks
};

// Local rows [local, local + rows) are rows [global, global + rows) of the whole parameter.
struct RowPart {
    std::int64_t local, global, rows;
};

struct Param {
    std::string name;                  // "layers.3.qkv"
    std::vector<std::int64_t> shape;   // of what this rank holds: [out, in], or [n]
    double init_std;                   // of a normal; < 0 means all ones (gains), 0 all zeros (biases)
    std::vector<std::int64_t> whole;   // shape of the whole parameter
    std::vector<RowPart> rows;         // where its rows lie in the whole; a vector's elements count as rows
    std::int64_t column = 0;           // first column in the whole
    Held held = Held::cut;
    int chunk = 0;                     // of the rank's pipeline chunks
    bool copy = false;                 // the last stage's copy of a tied embedding: the first stage's counts and is saved
    std::int64_t offset = 0;           // elements into the flat buffers

    std::int64_t size() const { return shape.size() == 2 ? shape[0] * shape[1] : shape[0]; }
    std::int64_t columns() const { return shape.size() == 2 ? shape[1] : 1; }
    std::int64_t whole_columns() const { return whole.size() == 2 ? whole[1] : 1; }
    bool decays() const { return whole.size() == 2; }  // weight decay is for matrices
};

struct ParamTable {
    std::vector<Param> specs;      // in the order of the forward pass
    std::int64_t flat_size = 0;    // elements of a flat buffer, with the padding that aligns each tensor
    BucketLayout buckets;
    std::vector<ShardPiece> owned; // what this replica's optimizer updates: everything, if there is one replica
    std::int64_t owned_size = 0;   // elements of an optimizer buffer

    explicit ParamTable(const ModelSection& model);  // the whole model
    ParamTable(const ModelSection& model, const Shard& shard, std::int64_t bucket_size);
    std::int64_t count() const;  // parameters, padding not counted
    const Param& at(const std::string& name) const;
    bool has(const std::string& name) const;

    // The tensor `name` inside of a flat buffer.
    template <class T> View<T> view(View<T> flat, const std::string& name) const { return view(flat, at(name)); }
    template <class T> static View<T> view(View<T> flat, const Param& s) {
        T* p = flat.data() + s.offset;
        return s.shape.size() == 2 ? View<T>(p, {s.shape[0], s.shape[1]}) : View<T>(p, {s.shape[0]});
    }
};

// The whole model as one rank holds it.
Shard whole_model(const ModelSection& model);

// Draws initial values into a flat buffer.
template <class T> void init_params(Stream& stream, const ParamTable& table, std::uint64_t seed, View<T> param);
// The same in float for what this replica owns, into an optimizer buffer.
void init_owned(Stream& stream, const ParamTable& table, std::uint64_t seed, View<float> master);

}  // namespace keel
