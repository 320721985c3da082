// ckpt/foreign/weights.h: the engine's parameters (ckpt/model_folder.h), put together from tensors of another system.
//
// Systems differ in how they cut and order what is the same mathematics: a matrix lies in one file, or its rows or columns
// in several; q, k and v lie apart, after each other, or group by group; rotary pairs are halves of a head, or neighbours.
// All of it is rectangles of parameters that come from rows of tensors.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/foreign/file_tensor.h"
#include "ckpt/model_config.h"
#include "ckpt/piece.h"

namespace keel {

// Whole rows of a file's tensor, from `from_row` on, are the rectangle `to` of `param`. A vector's elements are rows of
// one column.
struct Place {
    std::int64_t from_row;
    std::string param;
    Rect to;
    std::int64_t interleaved_head = 0;  // head_dim where each head's rotary pairs are (0, 1), (2, 3), …; 0: as keel has them
};

class ForeignWeights {
public:
    explicit ForeignWeights(const ModelShape& shape);

    // Tensor `name` of `table`, which must have `shape` and a type that converts, is these places; it may lie in pieces, each
    // under NAME@ROW,COLUMN of its first element. What is wrong is collected for `finish`.
    void put(const TensorTable& table, const std::string& name, const std::vector<std::int64_t>& shape, const std::vector<Place>& places);
    // A copy that another rank holds of what `original` calls `original_name`; refused if its values are others.
    void put_copy(const TensorTable& table, const std::string& name, const TensorTable& original, const std::string& original_name);
    // A tensor with no weights in it.
    void ignore(const TensorTable& table, const std::string& name);

    // Refuses missing, misshapen, unreadable and, unless allowed, unexpected tensors with the full list; and maps with
    // holes, which would be an error of this program.
    void finish(const std::string& what, const std::vector<TensorTable>& tables, bool allow_unexpected, const WarningSink& warn);

    // A ParamReader of ckpt/model_folder.h.
    void read(const std::string& param, std::int64_t first, std::int64_t count, Dtype to, std::byte* out) const;

private:
    void put_piece(const TensorTable& table, const std::string& name, const FileTensor& from, const Rect& piece, const std::vector<Place>& places);

    struct Part {
        FileTensor from;
        Place place;
    };
    struct Param {
        Rect extent;
        std::vector<Part> parts;
    };
    std::map<std::string, Param, std::less<>> params_;
    std::set<const FileTensor*> taken_;
    std::string wrong_;
};

// Whether two tensors hold the same bytes. Stops at the first that differs.
bool same_bytes(const FileTensor& a, const FileTensor& b);

}  // namespace keel
