// tests/engine/model_golden.h: reads tests/golden/model_NAME.golden, whole models in float64 written by a program that
// is not keel (tests/golden/make_models.py, which says what each tensor is), and makes the weights and rows those
// models ran on.
//
// Weights and ids are not in the files: both sides compute them from the same hash, exactly. Every weight is exact in
// bf16.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/loader.h"
#include "engine/config.h"

namespace keel {

using Values = std::vector<double>;
using Weights = std::map<std::string, Values>;  // by the names of engine/model/params.h

// Rows of documents as a loader would hand them out.
struct Rows {
    std::vector<std::int32_t> ids, labels, positions, lo;
    std::int64_t loss_tokens = 0;

    // `names` has one stream of ids per row. A row of several documents predicts nothing at the end of each.
    Rows(const ModelSection& model, const std::vector<std::string>& names,
         const std::vector<std::vector<std::int64_t>>& documents);
    std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
    Batch batch() const;  // views of this object
};

struct ModelGolden {
    static constexpr int steps = 20;
    static constexpr double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-5, weight_decay = 0.1;

    explicit ModelGolden(const std::string& name);

    const Values& operator[](const std::string& tensor) const;
    Rows row() const;           // the 300 positions of logits, loss and gradients
    Rows step(int index) const; // the rows of one step of the trajectory
    Weights weights() const { return initial_weights(model); }
    double clip_factor(double norm) const;

    static Weights initial_weights(const ModelSection& model);
    static const std::vector<std::string>& names();

    std::string name;
    ModelSection model;
    double clip = 0;
    std::vector<std::int64_t> documents;
    std::vector<std::vector<std::int64_t>> rows;

private:
    std::map<std::string, Values> tensors_;
};

// n values k/128 with k odd in -127…127, a function of the name alone.
Values hashed(const std::string& name, std::size_t n);

}  // namespace keel
