#include "ckpt/foreign_model.h"

#include <array>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

std::string of_folder(const fs::path& path) {
    std::error_code none;
    const auto has = [&](const char* name) { return fs::exists(path / name, none); };
    bool megatron = has("latest_checkpointed_iteration.txt"), distcp = false, consolidated = false;
    for (const auto& entry : fs::directory_iterator(path, none)) {
        const std::string name = entry.path().filename().string();
        megatron = megatron || name.starts_with("mp_rank_");
        distcp = distcp || name.ends_with(".distcp");
        consolidated = consolidated || name.starts_with("consolidated.");
    }
    if (has("config.json")) return {};
    if (has("params.json") && consolidated)
        return path.string() +
               " is a model in its maker's own form (params.json, consolidated.*), whose heads have their rotary pairs "
               "interleaved; take the same weights as a model folder (config.json, *.safetensors), or make one with "
               "the script "
               "convert_llama_weights_to_hf.py of transformers";
    if (megatron)
        return path.string() +
               " is a checkpoint of Megatron-LM, which is pickled Python; write it as a model folder with Megatron "
               "Bridge's "
               "export, and give that";
    if (distcp)
        return path.string() +
               " is a distributed checkpoint of PyTorch, which is pickled Python; gather it, save it as a model folder "
               "(save_pretrained with safetensors), and give that";
    return {};
}

std::string of_file(const fs::path& path) {
    const InputFile file(path);
    std::array<std::byte, 4> begin{};
    if (file.size_bytes() < 4) return {};
    file.read_at(0, begin);
    const auto is = [&](const char (&magic)[5]) { return std::memcmp(begin.data(), magic, 4) == 0; };
    if (is("\xc6\xd7\x34\x01"))  // 20240326
        return path.string() +
               " is a model of llm.c, a GPT-2: its positions are learned and its norms have means and biases, which "
               "keel's "
               "models have not; its token files keel does read";
    if (is("GGUF"))
        return path.string() + " is a GGUF file, as llama.cpp reads it; give the model folder that it was made from";
    const std::string end = path.extension().string();
    if (is("PK\x03\x04") || end == ".pth" || end == ".pt")
        return path.string() +
               " is pickled Python, which runs code when it is opened; save its tensors as a model folder "
               "(save_pretrained with safetensors), and give that";
    return {};
}

}  // namespace

std::string foreign_model(const fs::path& path) {
    std::error_code none;
    if (fs::is_directory(path, none)) return of_folder(path);
    return fs::is_regular_file(path, none) ? of_file(path) : std::string();
}

}  // namespace keel
