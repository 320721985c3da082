#include "ckpt/foreign/distributed.h"

#include <optional>
#include <set>
#include <utility>

#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

using Kind = PickleValue::Kind;

constexpr const char* metadata_name = ".metadata";
constexpr std::int64_t max_metadata_bytes = std::int64_t{256} << 20;
constexpr std::int64_t max_piece_pickle_bytes = 1 << 20;  // of one tensor: some hundreds are usual

// A torch.Size, a tuple or a list of numbers.
std::optional<std::vector<std::int64_t>> sizes(const PickleValue* value) {
    if (!value) return std::nullopt;
    if (value->is(Kind::object) && value->callee->is_global("torch.Size") && value->arguments->items.size() == 1) value = value->arguments->items[0];
    if (!value->is(Kind::tuple) && !value->is(Kind::list)) return std::nullopt;
    std::vector<std::int64_t> out;
    for (const PickleValue* item : value->items) {
        if (!item->is(Kind::integer) || item->integer < 0) return std::nullopt;
        out.push_back(item->integer);
    }
    return out;
}

std::int64_t whole(const PickleValue& object, const char* name, const std::string& where) {
    const PickleValue* value = object.find(name);
    if (!value || !value->is(Kind::integer) || value->integer < 0) fail(where, ": \"", name, "\" of a piece is ", value ? value->description() : "absent");
    return value->integer;
}

}  // namespace

bool is_distributed_checkpoint(const fs::path& folder) {
    std::error_code none;
    return fs::is_regular_file(folder / metadata_name, none);
}

DistributedCheckpoint open_distributed(const fs::path& folder, const std::function<bool(std::string_view)>& wanted) {
    const std::string where = (folder / metadata_name).string();
    if (const InputFile file(folder / metadata_name); file.size_bytes() > max_metadata_bytes)
        fail(where, " has ", file.size_bytes(), " bytes; more than ", max_metadata_bytes, " is not read");
    const Pickle pickle(read_file(folder / metadata_name), where);
    const PickleValue *described = pickle.root().find("state_dict_metadata"), *stored = pickle.root().find("storage_data");
    if (!described || !described->is(Kind::dict) || !stored || !stored->is(Kind::dict))
        fail(where, " is ", pickle.root().description(), ", not the metadata of a distributed checkpoint");

    DistributedCheckpoint out;
    for (std::size_t i = 0; i + 1 < described->items.size(); i += 2) {
        const PickleValue& name = *described->items[i];
        if (!name.is(Kind::text) || !wanted(name.text)) continue;
        if (const auto shape = sizes(described->items[i + 1]->find("size"))) out.tensors[name.text].shape = *shape;  // else an object of bytes
    }
    std::map<std::string, std::shared_ptr<const InputFile>> files;
    std::set<std::pair<std::string, std::int64_t>> seen;  // what follows is as large as the files, not as the metadata says
    for (std::size_t i = 0; i + 1 < stored->items.size(); i += 2) {
        const PickleValue &index = *stored->items[i], &place = *stored->items[i + 1];
        const PickleValue *name = index.find("fqn"), *path = place.find("relative_path");
        if (!name || !name->is(Kind::text) || !path || !path->is(Kind::text)) fail(where, " describes a piece in a way this reader does not know");
        const auto tensor = out.tensors.find(name->text);
        if (tensor == out.tensors.end()) continue;
        if (path->text.empty() || path->text.find('/') != std::string::npos) fail(where, ": the file \"", path->text, "\" is not one of this folder");
        auto& file = files[path->text];
        if (!file) file = std::make_shared<const InputFile>(folder / path->text);
        const std::int64_t begin = whole(place, "offset", where), length = whole(place, "length", where);
        if (begin > file->size_bytes() || length > file->size_bytes() - begin)
            fail(file->path().string(), " has ", file->size_bytes(), " bytes, but \"", name->text, "\" lies at byte ", begin, ", ", length, " bytes long; the file is cut");
        if (!seen.insert({path->text, begin}).second) fail(where, ": two pieces lie at byte ", begin, " of \"", path->text, "\"");
        const auto saved = std::make_shared<TorchFile>(file, begin, begin + length, max_piece_pickle_bytes);
        FileTensor piece = saved->tensor(saved->root(), name->text);
        const std::size_t dims = tensor->second.shape.size();
        const auto offset = sizes(index.find("offset")).value_or(std::vector<std::int64_t>(dims, 0));
        bool fits = offset.size() == dims && piece.shape.size() == dims;
        for (std::size_t d = 0; fits && d < dims; ++d) fits = piece.shape[d] <= tensor->second.shape[d] && offset[d] <= tensor->second.shape[d] - piece.shape[d];
        if (!fits)
            fail(where, ": a piece ", shape_text(piece.shape), " of \"", name->text, "\" at ", shape_text(offset), " does not fit into ", shape_text(tensor->second.shape));
        tensor->second.pieces.push_back({offset, std::move(piece)});
        out.files.push_back(saved);
    }
    return out;
}

}  // namespace keel
