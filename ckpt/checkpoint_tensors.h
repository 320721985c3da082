// ckpt/checkpoint_tensors.h: the tensors of a checkpoint as whole ones, whatever files and pieces hold them.
//
// A file of one rank of many names its pieces NAME@ROW,COL and says in its metadata, under "keel.pieces", of which
// tensor, of which shape and where each is. A tensor stored under its own name is whole. Opening reads headers alone
// and refuses tensors with holes, overlaps, or pieces that contradict each other.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/piece.h"
#include "ckpt/safetensors.h"

namespace keel {

enum class TensorKind : std::uint8_t { weights, optimizer };

// Optimizer state is NAME.m, NAME.v and NAME.master; everything else is a weight.
TensorKind kind_of_tensor(std::string_view tensor_name);

// The file that `rank` of `ranks` writes: weights.safetensors, or weights-rank-00003-of-00008.safetensors.
std::string tensor_file_name(TensorKind kind, int rank, int ranks);
bool is_tensor_file(std::string_view file, TensorKind kind);

// Writes a rank's pieces of one kind; the name is tensor_file_name's. Nothing, and no file, if it has none.
std::vector<CheckpointFile> write_tensor_file(const std::filesystem::path& folder, TensorKind kind, int rank, int ranks,
                                              std::span<const TensorPiece> owned);

class CheckpointTensors {
public:
    enum class Coverage : std::uint8_t { whole, part };  // part: the files of one rank, whose tensors have holes

    // Of the files among `files` that hold tensors of the kinds asked for.
    CheckpointTensors(const std::filesystem::path& folder, std::span<const CheckpointFile> files, bool weights,
                      bool optimizer, Coverage coverage = Coverage::whole);
    explicit CheckpointTensors(const CheckpointInfo& info, Coverage coverage = Coverage::whole)
        : CheckpointTensors(info.path, info.files, true, true, coverage) {}

    struct Piece {
        std::size_t file, stored;  // files()[file].header.tensors[stored]
        Rect rect;
    };
    struct Tensor {
        StoredDtype dtype;
        std::vector<std::int64_t> shape;
        std::vector<Piece> pieces;
    };
    struct File {
        CheckpointFile listed;
        TensorKind kind;
        SafetensorsHeader header;
        std::vector<std::string> tensor_of;  // of each of the header's tensors: which global one it is a piece of,
        std::vector<Rect> rects;             // and where it lies in that
    };
    const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
    const std::vector<File>& files() const { return files_; }
    const std::filesystem::path& folder() const { return folder_; }
    const Tensor* find(std::string_view name) const;  // nullptr if absent

    // Fills `wanted`, of which name, dtype, rectangle and memory count, from the pieces that cover it.
    void read(const TensorPiece& wanted) const;
    // Elements [first, first + count) of the flat tensor.
    void read(std::string_view name, std::int64_t first, std::int64_t count, Dtype to, std::byte* out) const;

private:
    void add_file(const CheckpointFile& listed, TensorKind kind);
    void check_tiling() const;

    std::filesystem::path folder_;
    std::vector<File> files_;
    std::map<std::string, Tensor, std::less<>> tensors_;
};

// Elements [first, first + count) of the piece `from`, stored row by row at `bytes`, go to where `to` has them.
void scatter(const Rect& from, std::int64_t first, std::int64_t count, StoredDtype dtype, const std::byte* bytes,
             const TensorPiece& to);

}  // namespace keel
