#include "engine/added_rows.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_tensors.h"
#include "ckpt/model_folder.h"

namespace keel {
namespace {

// Reads rectangles of the source's parameters.
using Read = std::function<void(const TensorPiece&)>;
Read reader(const ModelSource& source) {
    if (source.kind == ModelSource::Kind::folder)
        return [weights = std::make_shared<FolderWeights>(source.path, read_model_shape(source.path))](const TensorPiece& p) {
            weights->read({&p, 1});
        };
    const CheckpointInfo info = open_checkpoint(source.path);
    return [weights = std::make_shared<CheckpointTensors>(info.path, info.files, true, false)](const TensorPiece& p) {
        weights->read(p);
    };
}

std::vector<float> mean_row(const Read& read, const std::string& name, std::int64_t vocab, std::int64_t hidden) {
    const std::int64_t block = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / hidden);
    std::vector<float> rows(static_cast<std::size_t>(std::min(block, vocab) * hidden));
    std::vector<double> sum(static_cast<std::size_t>(hidden));
    for (std::int64_t row = 0; row < vocab; row += block) {
        const std::int64_t n = std::min(block, vocab - row);
        read({.name = name, .dtype = Dtype::f32, .shape = {vocab, hidden}, .row = row, .rows = n, .col = 0, .cols = hidden,
              .data = reinterpret_cast<std::byte*>(rows.data()), .row_stride = hidden});
        for (std::int64_t r = 0; r < n; ++r)
            for (std::int64_t i = 0; i < hidden; ++i)
                sum[static_cast<std::size_t>(i)] += static_cast<double>(rows[static_cast<std::size_t>(r * hidden + i)]);
    }
    std::vector<float> mean;
    for (const double x : sum) mean.push_back(static_cast<float>(x / static_cast<double>(vocab)));
    return mean;
}

}  // namespace

std::vector<TensorPiece> take_added_rows(std::vector<TensorPiece>& pieces, std::int64_t vocab) {
    std::vector<TensorPiece> added;
    for (TensorPiece& p : pieces) {
        if ((p.name != "embed" && p.name != "head") || p.shape[0] <= vocab) continue;
        const std::int64_t kept = std::clamp<std::int64_t>(vocab - p.row, 0, p.rows);
        if (kept < p.rows) {
            TensorPiece rest = p;
            rest.row += kept, rest.rows -= kept;
            rest.data += kept * p.row_stride * size_bytes(p.dtype);
            added.push_back(std::move(rest));
        }
        p.shape[0] = vocab, p.row = std::min(p.row, vocab), p.rows = kept;
    }
    return added;
}

void fill_added_rows(const ModelSource& source, const std::vector<TensorPiece>& added) {
    if (added.empty()) return;
    const Read read = reader(source);
    std::map<std::string, std::vector<float>> means;
    for (const TensorPiece& p : added) {
        const auto [at, fresh] = means.try_emplace(p.name);
        if (fresh) at->second = mean_row(read, p.name, source.config.model.vocab, source.config.model.hidden);
        for (std::int64_t row = 0; row < p.rows; ++row)
            convert(StoredDtype::F32, reinterpret_cast<const std::byte*>(at->second.data() + p.col), p.dtype,
                    p.data + row * p.row_stride * size_bytes(p.dtype), p.cols);
    }
}

}  // namespace keel
