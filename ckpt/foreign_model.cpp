#include "ckpt/foreign_model.h"

#include <array>

#include "ckpt/foreign/readers.h"
#include "ckpt/foreign/torch_file.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::string_view, 4> kinds{"meta", "megatron", "llm.c", "llama2.c"};

std::string first_bytes(const InputFile& file) {
    std::string start(static_cast<std::size_t>(std::min<std::int64_t>(1024, file.size_bytes())), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(start)));
    return start;
}

bool is_kind(const fs::path& path, ForeignKind kind) {
    std::error_code none;
    if (fs::is_directory(path, none)) {
        if (kind == ForeignKind::meta) return is_meta_folder(path);
        return kind == ForeignKind::megatron && is_megatron_folder(path);
    }
    if (!fs::is_regular_file(path, none)) return false;
    const InputFile file(path);
    if (kind == ForeignKind::llmc) return is_llmc_model(first_bytes(file));
    return kind == ForeignKind::llama2c && is_llama2c_model(first_bytes(file), file.size_bytes());
}

std::string of_folder(const fs::path& path) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(path, none))
        if (entry.path().extension() == ".distcp")
            return path.string() +
                   " is a distributed checkpoint of PyTorch; of these keel reads Megatron-LM's, with their common.pt and .metadata. Gather it, save it as a model folder "
                   "(save_pretrained with safetensors), and give that";
    return {};
}

std::string of_file(const fs::path& path) {
    const InputFile file(path);
    const std::string start = first_bytes(file), end = path.extension().string();
    if (start.starts_with("\xc6\xd7\x34\x01"))  // 20240326
        return path.string() +
               " is a model of llm.c, a GPT-2: its positions are learned and its norms have means and biases, which keel's "
               "models have not; its token files keel does read";
    if (start.starts_with("GGUF"))
        return path.string() + " is a GGUF file, as llama.cpp reads it; give the model folder that it was made from";
    const fs::path parent = fs::weakly_canonical(path).parent_path();
    if (start.starts_with("PK\3\4") || is_old_torch_file(start) || end == ".pth" || end == ".pt") {
        for (const fs::path& folder : {parent, parent.parent_path()})
            if (find_foreign(folder)) return path.string() + " is one file of a checkpoint; give its folder " + folder.string();
        return path.string() +
               " is a file of torch.save, from which alone no model's shape is known; save its tensors as a model folder "
               "(save_pretrained with safetensors), and give that";
    }
    return {};
}

}  // namespace

std::string_view name(ForeignKind kind) { return kinds[static_cast<std::size_t>(kind)]; }

std::optional<ForeignKind> parse_foreign_kind(std::string_view text) {
    for (std::size_t i = 0; i < kinds.size(); ++i)
        if (kinds[i] == text) return static_cast<ForeignKind>(i);
    return std::nullopt;
}

std::optional<ForeignKind> find_foreign(const fs::path& path) {
    std::error_code none;
    if (fs::exists(path / "config.json", none)) return std::nullopt;
    for (std::size_t i = 0; i < kinds.size(); ++i)
        if (is_kind(path, static_cast<ForeignKind>(i))) return static_cast<ForeignKind>(i);
    return std::nullopt;
}

ForeignModel open_foreign(const fs::path& path, ForeignKind kind, const ForeignOptions& options) {
    if (!is_kind(path, kind)) {
        const std::string told = foreign_model(path);
        constexpr std::array<std::string_view, 4> forms{
            "a folder with params.json and consolidated.00.pth or consolidated.safetensors",
            "a folder with latest_checkpointed_iteration.txt, or one iteration's, with mp_rank_00/model_optim_rng.pt, or common.pt and .metadata",
            "a model file of llm.c's Llama 3 (it begins with the number 20240803)", "a model file of llama2.c"};
        fail(path.string(), " is not ", forms[static_cast<std::size_t>(kind)], told.empty() ? "" : ": " + told);
    }
    switch (kind) {
        case ForeignKind::meta: return open_meta(path, options);
        case ForeignKind::megatron: return open_megatron(path, options);
        case ForeignKind::llmc: return open_llmc(path, options);
        case ForeignKind::llama2c: return open_llama2c(path, options);
    }
    fail("no such form");
}

void check_bytes(const ForeignModel& model) {
    for (const auto& file : model.torch) file->check_storages();
}

std::string foreign_model(const fs::path& path) {
    std::error_code none;
    if (const auto kind = find_foreign(path)) {
        constexpr std::array<std::string_view, 4> what{"a model in the form of its makers", "a checkpoint of Megatron-LM", "a model of llm.c", "a model of llama2.c"};
        return concat(path.string(), " is ", what[static_cast<std::size_t>(*kind)], ": `keel convert ", path.string(), " FOLDER` makes the model folder that keel trains from");
    }
    if (fs::exists(path / "config.json", none)) return {};
    if (fs::is_directory(path, none)) return of_folder(path);
    return fs::is_regular_file(path, none) ? of_file(path) : std::string();
}

}  // namespace keel
