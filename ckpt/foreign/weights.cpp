#include "ckpt/foreign/weights.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "ckpt/model_folder.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::int64_t block_elements = std::int64_t{1} << 20;

// Elements [col, col + count) of a row and what follows it, which must be contiguous in the file.
void read_run(const FileTensor& from, std::int64_t row, std::int64_t col, std::int64_t count, Dtype to, std::byte* out,
              std::vector<std::byte>& block) {
    const std::int64_t element = size_bits(from.dtype) / 8;
    for (std::int64_t done = 0; done < count; done += block_elements) {
        const std::int64_t now = std::min(block_elements, count - done);
        block.resize(static_cast<std::size_t>(now * element));
        from.file->read_at(from.begin + (row * from.row_stride + col + done) * element, block);
        convert(from.dtype, block.data(), to, out + done * size_bytes(to), now);
    }
}

// Row r of a head counted with halves apart is this row of one whose pairs are neighbours.
std::int64_t in_neighbours(std::int64_t row, std::int64_t head) {
    const std::int64_t r = row % head, half = head / 2;
    return row - r + (r < half ? 2 * r : 2 * (r - half) + 1);
}

}  // namespace

bool same_bytes(const FileTensor& a, const FileTensor& b) {
    if (a.shape != b.shape || a.dtype != b.dtype) return false;
    const std::int64_t cols = a.row_elements(), step = std::max<std::int64_t>(1, block_elements / std::max<std::int64_t>(cols, 1));
    const bool whole = a.row_stride == cols && b.row_stride == cols;
    std::vector<std::byte> x, y;
    for (std::int64_t row = 0; row < a.rows(); row += whole ? step : 1) {
        const std::int64_t bytes = (whole ? std::min(step, a.rows() - row) : 1) * cols * size_bits(a.dtype) / 8;
        x.resize(static_cast<std::size_t>(bytes)), y.resize(x.size());
        a.file->read_at(a.begin + row * a.row_stride * size_bits(a.dtype) / 8, x);
        b.file->read_at(b.begin + row * b.row_stride * size_bits(b.dtype) / 8, y);
        if (x != y) return false;
    }
    return true;
}

ForeignWeights::ForeignWeights(const ModelShape& shape) {
    for (const ParamSpec& spec : param_specs(shape)) {
        const bool vector = spec.shape.size() == 1;
        params_[spec.name] = {{0, spec.shape[0], 0, vector ? 1 : spec.shape[1]}, {}};
    }
}

void ForeignWeights::put(const TensorTable& table, const std::string& name, const std::vector<std::int64_t>& shape, const std::vector<Place>& places) {
    if (const FileTensor* whole = table.find(name)) {
        if (whole->shape == shape) return put_piece(table, name, *whole, {0, shape[0], 0, shape.size() > 1 ? shape[1] : 1}, places);
        taken_.insert(whole);
        wrong_ += concat("\n  misshapen  ", name, " is ", shape_text(whole->shape), ", the model's shape makes it ", shape_text(shape), "   in ", table.where);
        return;
    }
    const std::string prefix = name + "@";
    bool any = false;
    for (auto at = table.tensors.lower_bound(prefix); at != table.tensors.end() && at->first.starts_with(prefix); ++at, any = true) {
        std::int64_t row = 0, col = 0;
        std::sscanf(at->first.c_str() + prefix.size(), "%" SCNd64 ",%" SCNd64, &row, &col);
        if (row < 0 || col < 0 || row > shape[0] || col > (shape.size() > 1 ? shape[1] : 1)) continue;  // reported as unexpected
        const Rect piece{row, at->second.rows(), col, at->second.row_elements()};
        if (row + piece.rows > shape[0] || col + piece.cols > (shape.size() > 1 ? shape[1] : 1)) {
            taken_.insert(&at->second);
            wrong_ += concat("\n  misshapen  ", at->first, " is ", shape_text(at->second.shape), ", and reaches past the ", shape_text(shape),
                             " that the model's shape makes   in ", table.where);
            continue;
        }
        put_piece(table, at->first, at->second, piece, places);
    }
    if (!any) wrong_ += concat("\n  missing    ", name, " ", shape_text(shape), "   in ", table.where);
}

void ForeignWeights::put_piece(const TensorTable& table, const std::string& name, const FileTensor& from, const Rect& piece, const std::vector<Place>& places) {
    taken_.insert(&from);
    if (!is_convertible(from.dtype)) {
        wrong_ += concat("\n  unreadable ", name, " is ", keel::name(from.dtype), "; keel loads F32, BF16, F16, F64, F8_E4M3 and F8_E5M2   in ", table.where);
        return;
    }
    for (const Place& place : places) {
        const auto param = params_.find(place.param);
        if (param == params_.end()) fail(table.where, ": ", name, " is mapped to ", place.param, ", which this model has not");
        const std::int64_t first = std::max(place.from_row, piece.row), end = std::min(place.from_row + place.to.rows, piece.row + piece.rows);
        if (first >= end) continue;
        const std::int64_t into = first - place.from_row;
        if (place.interleaved_head != 0 && (into % place.interleaved_head != 0 || (end - first) % place.interleaved_head != 0))
            fail(table.where, ": ", name, " begins or ends inside of a head whose rotary pairs are neighbours, which keel does not read");
        param->second.parts.push_back({from, {first - piece.row, place.param, {place.to.row + into, end - first, place.to.col + piece.col, piece.cols}, place.interleaved_head}});
    }
}

void ForeignWeights::put_copy(const TensorTable& table, const std::string& name, const TensorTable& original, const std::string& original_name) {
    const FileTensor *copy = table.find(name), *from = original.find(original_name);
    if (!copy || !from) return;  // of an original that is missing `put` has told
    taken_.insert(copy);
    if (!same_bytes(*copy, *from)) wrong_ += concat("\n  differs    ", name, " in ", table.where, " from ", original_name, " in ", original.where);
}

void ForeignWeights::ignore(const TensorTable& table, const std::string& name) {
    if (const FileTensor* tensor = table.find(name)) taken_.insert(tensor);
}

void ForeignWeights::finish(const std::string& what, const std::vector<TensorTable>& tables, bool allow_unexpected, const WarningSink& warn) {
    for (const TensorTable& table : tables)
        for (const auto& [name, tensor] : table.tensors) {
            if (taken_.contains(&tensor)) continue;
            const std::string line = concat("unexpected ", name, " ", shape_text(tensor.shape), "   in ", table.where);
            if (!allow_unexpected) wrong_ += "\n  " + line;
            else if (warn) warn(line + " is not used");
        }
    if (!wrong_.empty()) fail(what, ": the weights do not fit its shape:", wrong_);
    for (const auto& [name, param] : params_) {
        std::vector<Rect> rects;
        for (const Part& part : param.parts) rects.push_back(part.place.to);
        const std::vector<std::int64_t> shape{param.extent.rows, param.extent.cols};
        const std::string error = tiling_error(shape, rects, [](std::size_t i) { return concat("part ", i); });
        if (!error.empty()) fail(what, ": parameter ", name, ": ", error);
    }
}

void ForeignWeights::read(const std::string& name, std::int64_t first, std::int64_t count, Dtype to, std::byte* out) const {
    const Param& param = params_.at(name);
    const std::int64_t cols = param.extent.cols, end = first + count;
    std::vector<std::byte> block;
    for (const Part& part : param.parts) {
        const Place& place = part.place;
        const std::int64_t last = std::min(place.to.row + place.to.rows, (end + cols - 1) / cols);
        const bool whole_rows = place.interleaved_head == 0 && place.to.cols == cols && part.from.row_stride == cols;
        for (std::int64_t row = std::max(place.to.row, first / cols); row < last;) {
            const std::int64_t begin = std::max(row * cols + place.to.col, first);
            const std::int64_t to_row = whole_rows ? last : row + 1;
            const std::int64_t stop = std::min((to_row - 1) * cols + place.to.col + place.to.cols, end);
            const std::int64_t in_place = row - place.to.row;
            const std::int64_t from = place.from_row + (place.interleaved_head ? in_neighbours(in_place, place.interleaved_head) : in_place);
            if (begin < stop)
                read_run(part.from, from, begin - row * cols - place.to.col, stop - begin, to, out + (begin - first) * size_bytes(to), block);
            row = to_row;
        }
    }
}

}  // namespace keel
