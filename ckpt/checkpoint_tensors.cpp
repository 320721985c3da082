#include "ckpt/checkpoint_tensors.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "ckpt/draft.h"
#include "ckpt/strict_json.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr const char* pieces_key = "keel.pieces";
constexpr std::int64_t block_bytes = std::int64_t{4} << 20;

const char* stem(TensorKind kind) { return kind == TensorKind::weights ? "weights" : "optimizer"; }

// Rows are cut out of the memory as the file takes them; a piece without gaps goes at once.
std::function<void(const ByteSink&)> bytes_of(const TensorPiece& p) {
    return [p](const ByteSink& out) {
        const std::int64_t row_bytes = p.cols * size_bytes(p.dtype), stride_bytes = p.row_stride * size_bytes(p.dtype);
        if (row_bytes == stride_bytes || p.rows == 1)
            return out({p.data, static_cast<std::size_t>(p.rows * row_bytes)});
        for (std::int64_t r = 0; r < p.rows; ++r) out({p.data + r * stride_bytes, static_cast<std::size_t>(row_bytes)});
    };
}

struct Placed {
    std::string tensor;
    std::vector<std::int64_t> shape;
    Rect rect;
};

// What the metadata says of one stored tensor; by default it is whole.
Placed placed(const StoredTensor& t, const Json& pieces, const std::string& where) {
    if (!pieces.contains(t.name)) return {t.name, t.shape, extent(t.shape)};
    const auto bad = [&](const std::string& why) { fail(where, ": ", pieces_key, " of \"", t.name, "\" ", why); };
    Placed p;
    try {
        const Json& at = pieces.at(t.name);
        p.tensor = at.at("tensor").get<std::string>();
        p.shape = at.at("shape").get<std::vector<std::int64_t>>();
        const Rect own = extent(t.shape);
        p.rect = {at.at("row").get<std::int64_t>(), own.rows, at.at("col").get<std::int64_t>(), own.cols};
    } catch (const Json::exception& e) {
        bad(concat("is not {tensor, shape, row, col}: ", e.what()));
    }
    std::int64_t elements = 1;
    for (const std::int64_t d : p.shape)
        if (d < 0 || __builtin_mul_overflow(elements, d, &elements)) bad("has the shape " + shape_text(p.shape));
    const Rect all = extent(p.shape), &r = p.rect;
    if (r.row < 0 || r.col < 0 || r.row > all.rows - r.rows || r.col > all.cols - r.cols)
        bad(concat("is ", shape_text(t.shape), " at row ", r.row, ", column ", r.col, ", which is not inside ",
                   shape_text(p.shape)));
    return p;
}

}  // namespace

TensorKind kind_of_tensor(std::string_view tensor) {
    const bool state = tensor.ends_with(".m") || tensor.ends_with(".v") || tensor.ends_with(".master");
    return state ? TensorKind::optimizer : TensorKind::weights;
}

std::string tensor_file_name(TensorKind kind, int rank, int ranks) {
    if (ranks == 1) return concat(stem(kind), ".safetensors");
    std::array<char, 80> text{};
    std::snprintf(text.data(), text.size(), "%s-rank-%05d-of-%05d.safetensors", stem(kind), rank, ranks);
    return text.data();
}

bool is_tensor_file(std::string_view file, TensorKind kind) {
    return file.starts_with(stem(kind)) && file.ends_with(".safetensors");
}

std::vector<CheckpointFile> write_tensor_file(const fs::path& folder, TensorKind kind, int rank, int ranks,
                                              std::span<const TensorPiece> owned) {
    std::vector<TensorSource> sources;
    Json placed = Json::object();
    for (const TensorPiece& p : owned) {
        if (kind_of_tensor(p.name) != kind || (p.rect().empty() && element_count(p.shape) != 0)) continue;
        if (p.rect() == extent(p.shape)) {
            sources.push_back({p.name, stored(p.dtype), p.shape, bytes_of(p)});
            continue;
        }
        const std::string name = concat(p.name, "@", p.row, ",", p.col);
        placed[name] = {{"tensor", p.name}, {"shape", p.shape}, {"row", p.row}, {"col", p.col}};
        const auto shape = p.shape.size() <= 1 ? std::vector{p.cols} : std::vector{p.rows, p.cols};
        sources.push_back({name, stored(p.dtype), shape, bytes_of(p)});
    }
    if (sources.empty()) return {};
    std::map<std::string, std::string> metadata;
    if (!placed.empty()) metadata[pieces_key] = placed.dump();
    return {write_hashed(folder, tensor_file_name(kind, rank, ranks), [&](const ByteSink& out) {
        write_safetensors(std::move(sources), std::move(metadata), out);
    })};
}

CheckpointTensors::CheckpointTensors(const fs::path& folder, std::span<const CheckpointFile> files, bool weights,
                                     bool optimizer, Coverage coverage)
    : folder_(folder) {
    for (const CheckpointFile& f : files) {
        if (weights && is_tensor_file(f.name, TensorKind::weights)) add_file(f, TensorKind::weights);
        if (optimizer && is_tensor_file(f.name, TensorKind::optimizer)) add_file(f, TensorKind::optimizer);
    }
    if (coverage == Coverage::whole) check_tiling();
}

void CheckpointTensors::add_file(const CheckpointFile& listed, TensorKind kind) {
    const std::string where = (folder_ / listed.name).string();
    const InputFile in(folder_ / listed.name);
    File file{listed, kind, parse_safetensors_header(read_safetensors_start(in), in.size_bytes(), where), {}, {}};
    Json pieces = Json::object();
    if (const auto text = file.header.metadata.find(pieces_key); text != file.header.metadata.end())
        pieces = parse_strict_json(text->second, where + ": " + pieces_key);
    for (std::size_t i = 0; i < file.header.tensors.size(); ++i) {
        const StoredTensor& t = file.header.tensors[i];
        Placed p = placed(t, pieces, where);
        const auto [at, fresh] = tensors_.try_emplace(p.tensor, Tensor{t.dtype, p.shape, {}});
        Tensor& tensor = at->second;
        if (!fresh && (tensor.shape != p.shape || tensor.dtype != t.dtype))
            fail(where, ": \"", p.tensor, "\" is ", name(t.dtype), " ", shape_text(p.shape), " here, but ",
                 name(tensor.dtype), " ", shape_text(tensor.shape), " in ",
                 files_.empty() ? listed.name : files_[tensor.pieces.front().file].listed.name);
        tensor.pieces.push_back({files_.size(), i, p.rect});
        file.tensor_of.push_back(std::move(p.tensor));
        file.rects.push_back(p.rect);
    }
    files_.push_back(std::move(file));
}

void CheckpointTensors::check_tiling() const {
    std::string wrong;
    std::vector<Rect> rects;
    for (const auto& [tensor, t] : tensors_) {
        rects.clear();
        for (const Piece& p : t.pieces) rects.push_back(p.rect);
        const std::string error =
            tiling_error(t.shape, rects, [&](std::size_t i) { return files_[t.pieces[i].file].listed.name; });
        if (!error.empty()) wrong += concat("\n  ", tensor, " ", shape_text(t.shape), ": ", error);
    }
    if (!wrong.empty()) fail(folder_.string(), " does not hold each tensor exactly once:", wrong);
}

const CheckpointTensors::Tensor* CheckpointTensors::find(std::string_view name) const {
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? nullptr : &at->second;
}

void CheckpointTensors::read(const TensorPiece& wanted) const {
    const Tensor* t = find(wanted.name);
    if (!t) fail(folder_.string(), " holds no tensor \"", wanted.name, "\"");
    if (!is_convertible(t->dtype))
        fail(folder_.string(), ": \"", wanted.name, "\" is ", name(t->dtype), ", which keel does not load");
    std::vector<std::byte> block;
    for (const Piece& p : t->pieces) {
        const Rect part = intersect(p.rect, wanted.rect());
        if (part.empty()) continue;
        const File& file = files_[p.file];
        const StoredTensor& stored = file.header.tensors[p.stored];
        const InputFile in(folder_ / file.listed.name);
        const std::int64_t element = size_bits(t->dtype) / 8;
        // Whole rows of the piece, of which the wanted columns are taken; of a single row just those.
        const bool line = part.rows == 1;
        std::int64_t first = (part.row - p.rect.row) * p.rect.cols + (line ? part.col - p.rect.col : 0);
        const std::int64_t end = first + (line ? part.cols : part.rows * p.rect.cols);
        block.resize(static_cast<std::size_t>(std::min(block_bytes, (end - first) * element)));
        while (first < end) {
            const std::int64_t now = std::min(end - first, block_bytes / element);
            const auto bytes = std::span(block).first(static_cast<std::size_t>(now * element));
            in.read_at(file.header.data_offset + stored.begin + first * element, bytes);
            scatter(p.rect, first, now, t->dtype, bytes.data(), wanted);
            first += now;
        }
    }
}

void CheckpointTensors::read(std::string_view name, std::int64_t first, std::int64_t count, Dtype to,
                             std::byte* out) const {
    const Tensor* t = find(name);
    if (!t) fail(folder_.string(), " holds no tensor \"", name, "\"");
    const std::int64_t width = extent(t->shape).cols;
    for (std::int64_t done = 0; done < count;) {
        const std::int64_t at = first + done, row = at / width, col = at % width;
        const std::int64_t rows = col == 0 && count - done >= width ? (count - done) / width : 1;
        const std::int64_t cols = rows == 1 ? std::min(width - col, count - done) : width;
        read({std::string(name), to, t->shape, row, rows, col, cols, out + done * size_bytes(to), cols});
        done += rows * cols;
    }
}

void scatter(const Rect& from, std::int64_t first, std::int64_t count, StoredDtype dtype, const std::byte* bytes,
             const TensorPiece& to) {
    const Rect part = intersect(from, to.rect());
    if (part.empty() || count == 0) return;
    const std::int64_t element = size_bits(dtype) / 8, out_element = size_bytes(to.dtype);
    const auto move = [&](std::int64_t begin, std::int64_t n, std::int64_t row, std::int64_t col) {
        std::byte* out = to.data + ((row - to.row) * to.row_stride + (col - to.col)) * out_element;
        convert(dtype, bytes + (begin - first) * element, to.dtype, out, n);
    };
    const std::int64_t first_row = std::max(part.row, from.row + first / from.cols);
    const std::int64_t last_row = std::min(part.row + part.rows - 1, from.row + (first + count - 1) / from.cols);
    const bool seamless = part.cols == from.cols && to.row_stride == from.cols;  // rows follow each other on both sides
    if (seamless && first_row <= last_row) {
        const std::int64_t begin = std::max(first, (first_row - from.row) * from.cols);
        const std::int64_t end = std::min(first + count, (last_row - from.row + 1) * from.cols);
        return move(begin, end - begin, from.row + begin / from.cols, from.col + begin % from.cols);
    }
    for (std::int64_t row = first_row; row <= last_row; ++row) {
        const std::int64_t row_begin = (row - from.row) * from.cols + (part.col - from.col);
        const std::int64_t begin = std::max(first, row_begin), end = std::min(first + count, row_begin + part.cols);
        if (begin < end) move(begin, end - begin, row, part.col + (begin - row_begin));
    }
}

}  // namespace keel
