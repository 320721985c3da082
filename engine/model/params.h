// engine/model/params.h: the parameters of a Llama-shaped model: names, shapes, where each lies in the flat buffers.
//
// All parameters lie in one flat buffer, all gradients in another, moments likewise, each tensor at the same element
// offset in all of them. The optimizer, the gradient norm and (later) the data-parallel buckets see flat memory; the
// blocks see Views. Names and shapes are global: they do not depend on a layout, and initial values depend only on
// (seed, name, element).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config.h"
#include "kernels/base/dtype.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

struct Param {
    std::string name;                 // "layers.3.qkv"
    std::vector<std::int64_t> shape;  // [out, in], or [n]
    std::int64_t offset;              // elements into the flat buffers
    double init_std;                  // of a normal; < 0 means all ones (gains), 0 all zeros (biases)

    std::int64_t size() const { return shape.size() == 2 ? shape[0] * shape[1] : shape[0]; }
    bool decays() const { return shape.size() == 2; }  // weight decay is for matrices
};

struct ParamTable {
    std::vector<Param> specs;
    std::int64_t flat_size = 0;  // elements of a flat buffer, with the padding that aligns each tensor

    explicit ParamTable(const ModelSection& model);
    std::int64_t count() const;  // parameters, padding not counted
    const Param& at(const std::string& name) const;

    // The tensor `name` inside of a flat buffer.
    template <class T> View<T> view(View<T> flat, const std::string& name) const {
        const Param& s = at(name);
        T* p = flat.data() + s.offset;
        return s.shape.size() == 2 ? View<T>(p, {s.shape[0], s.shape[1]}) : View<T>(p, {s.shape[0]});
    }
};

// Fills a flat buffer. `master` and `param` may be the same memory if T is float.
template <class T>
void init_params(Stream& stream, const ParamTable& table, std::uint64_t seed, View<float> master, View<T> param);

}  // namespace keel
