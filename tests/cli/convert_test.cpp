// `keel convert` and `keel inspect`: what goes in comes out, every option changes the output, and mistakes leave
// nothing.
#include <nlohmann/json.hpp>

#include "ckpt/checkpoint.h"
#include "ckpt/model_folder.h"
#include "ckpt/safetensors.h"
#include "tests/ckpt/support.h"
#include "tests/cli/keel_command.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path goldens = fs::path(KEEL_TEST_DIR) / "golden/folders";

void expect_done(const std::vector<std::string>& words) {
    const Outcome got = run_keel_words(words);
    EXPECT_EQ(got.code, 0) << got.err;
}

void expect_failure(const std::vector<std::string>& words, int code, const std::string& message) {
    const Outcome got = run_keel_words(words);
    EXPECT_EQ(got.code, code) << got.err;
    EXPECT_NE(got.err.find(message), std::string::npos) << got.err;
}

TEST(Convert, ACheckpointInBetweenChangesNoTensorAndLosesNoKey) {
    const TempFolder folder;
    for (const std::string family : {"llama", "smollm2", "mistral", "qwen2", "qwen3", "olmo2", "phi3"}) {
        const fs::path from = goldens / family, there = folder / (family + " there"),
                       back = folder / (family + " back");
        expect_done({"convert", from, there});
        expect_done({"convert", there, back});
        const SafetensorsSet a(from, {}), b(back, {});
        ASSERT_EQ(a.tensors().size(), b.tensors().size()) << family;
        for (const auto& [name, entry] : a.tensors()) {
            const auto other = b.find(name);
            ASSERT_TRUE(other && entry.tensor->dtype == other->tensor->dtype) << family << ": " << name;
            std::vector<std::byte> x(static_cast<std::size_t>(entry.tensor->size_bytes())), y(x.size());
            entry.file->read_bytes(*entry.tensor, 0, x);
            other->file->read_bytes(*other->tensor, 0, y);
            EXPECT_TRUE(x == y) << family << ": " << name;
        }
        const Json before = Json::parse(read_file(from / "config.json")),
                   after = Json::parse(read_file(back / "config.json"));
        for (const char* key : {"transformers_version", "use_cache", "eos_token_id", "bos_token_id", "model_type",
                                "max_position_embeddings", "tie_word_embeddings"}) {
            if (!before.contains(key)) continue;
            EXPECT_EQ(after[key], before[key]) << family << ": " << key;
        }
    }
}

TEST(Convert, DtypeAndShardLimitChangeTheOutput) {
    const TempFolder folder;
    expect_done({"convert", goldens / "llama", folder / "c", "--dtype", "bf16"});
    expect_done({"convert", folder / "c", folder / "bf16"});
    expect_done({"convert", folder / "c", folder / "f32", "--dtype", "f32", "--shard-limit", "0.000005"});
    EXPECT_EQ(SafetensorsFile(folder / "bf16/model.safetensors").tensors()[0].dtype, StoredDtype::BF16);
    const SafetensorsSet set(folder / "f32", {});
    EXPECT_GT(set.files().size(), 1u);
    EXPECT_EQ(set.find("lm_head.weight")->tensor->dtype, StoredDtype::F32);
    expect_done({"convert", folder / "c", folder / "f16", "--dtype", "f16"});
    EXPECT_EQ(SafetensorsFile(folder / "f16/model.safetensors").tensors()[0].dtype, StoredDtype::F16);
    EXPECT_EQ(Json::parse(read_file(folder / "f16/config.json"))["torch_dtype"], "float16");
}

TEST(Convert, Float32OfARunInBf16IsItsMasterWeights) {
    const TempFolder folder;
    expect_done({"convert", goldens / "llama", folder / "c", "--dtype", "bf16"});
    const CheckpointInfo info = open_checkpoint(folder / "c/step-00000000");
    OwnedTensors state;
    for (const ParamSpec& p : param_specs(read_model_shape(goldens / "llama"))) {
        state.add(p.name, Dtype::bf16, p.shape, 1);
        for (const char* kind : {".m", ".v", ".master"}) state.add(p.name + kind, Dtype::f32, p.shape, 2);
    }
    const fs::path trained = save_checkpoint(folder / "run", 1, info.state, state.all());
    const auto first_of = [&](const char* to, Dtype dtype) {
        const SafetensorsSet set(folder / to, {});
        const auto entry = *set.find("model.embed_tokens.weight");
        EXPECT_EQ(entry.tensor->dtype, stored(dtype));
        std::vector<std::byte> bytes(static_cast<std::size_t>(entry.tensor->size_bytes()));
        entry.file->read_bytes(*entry.tensor, 0, bytes);
        return bytes;
    };
    const auto held = [&](const std::string& name) {
        for (std::size_t i = 0; i < state.all().size(); ++i)
            if (state.all()[i].name == name) return state.memory()[i];
        return std::vector<std::byte>();
    };
    const Outcome master = run_keel_words({"convert", trained, folder / "f32", "--dtype", "f32"});
    EXPECT_NE(master.out.find("its float32 master weights"), std::string::npos) << master.out << master.err;
    EXPECT_EQ(first_of("f32", Dtype::f32), held("embed.master"));
    expect_done({"convert", trained, folder / "bf16"});
    EXPECT_EQ(first_of("bf16", Dtype::bf16), held("embed"));
    const Outcome widened = run_keel_words({"convert", folder / "c", folder / "wide", "--dtype", "f32"});
    EXPECT_NE(widened.out.find("whose bf16 weights are widened"), std::string::npos) << widened.out;
}

TEST(Convert, AShapeThatIsNotTheWeightsIsRefusedBeforeAnythingIsWritten) {
    const TempFolder folder;
    fs::copy(goldens / "llama", folder / "large");
    Json config = Json::parse(read_file(folder / "large/config.json"));
    config["intermediate_size"] = 1048576;
    write_file_atomically(folder / "large/config.json", config.dump());
    const Outcome got = run_keel_words({"convert", folder / "large", folder / "out"});
    EXPECT_EQ(got.code, 1);
    EXPECT_NE(got.err.find("mlp.up_proj.weight is [20, 16], config.json makes it [1048576, 16]"), std::string::npos)
        << got.err;
    EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(Convert, SaysThatBf16RoundsFloat16) {
    const TempFolder folder;
    const Outcome rounded = run_keel_words({"convert", goldens / "mistral", folder / "bf16", "--dtype", "bf16"});
    EXPECT_EQ(rounded.code, 0) << rounded.err;
    EXPECT_NE(rounded.err.find("mistral is in float16; in bf16 3 of the 11 bits"), std::string::npos) << rounded.err;
    for (const char* dtype : {"f32", "f16"}) {
        const Outcome kept = run_keel_words({"convert", goldens / "mistral", folder / dtype, "--dtype", dtype});
        EXPECT_EQ(kept.code, 0);
        EXPECT_EQ(kept.err.find("float16"), std::string::npos) << kept.err;
    }
}

TEST(Convert, WhatF16CannotHoldIsRefused) {
    const TempFolder folder;
    expect_done({"convert", goldens / "llama", folder / "m", "--dtype", "f32"});  // a checkpoint, made a folder below
    expect_done({"convert", folder / "m", folder / "large"});
    const fs::path weights = folder / "large/model.safetensors";
    std::string bytes = read_file(weights);
    const float large = 65520;
    bytes.replace(bytes.size() - sizeof large, sizeof large, reinterpret_cast<const char*>(&large), sizeof large);
    write_file_atomically(weights, bytes);
    expect_failure({"convert", folder / "large", folder / "f16", "--dtype", "f16"}, 1,
                   "1 weight is no finite number in f16, which ends at 65504; convert to bf16 or f32");
    EXPECT_FALSE(fs::exists(folder / "f16/step-00000000"));
    expect_done({"convert", folder / "large", folder / "bf16", "--dtype", "bf16"});
}

TEST(Convert, UnexpectedTensorsNeedTheirFlag) {
    const TempFolder folder;
    fs::copy(goldens / "qwen2", folder / "m");
    Json config = Json::parse(read_file(folder / "m/config.json"));
    config["model_type"] = "llama", config["architectures"] = {"LlamaForCausalLM"};  // biases are then unexpected
    for (const char* key : {"sliding_window", "use_sliding_window", "max_window_layers"}) config.erase(key);
    write_bytes(folder / "m/config.json", config.dump());
    expect_failure({"convert", folder / "m", folder / "c"}, 1, "unexpected model.layers.0.self_attn.k_proj.bias [8]");
    EXPECT_FALSE(fs::exists(folder / "c"));
    expect_done({"convert", folder / "m", folder / "c", "--allow-unexpected"});
}

TEST(Convert, MistakesAreNamedAndLeaveNothing) {
    const TempFolder folder;
    expect_failure({"convert", folder / "no", folder / "out"}, 1, "no such file or folder");
    expect_failure({"convert", goldens / "llama", folder / "out", "--dtype", "fp16"}, 2, "--dtype is \"fp16\"; give bf16, f16 or f32");
    expect_failure({"convert", goldens / "llama", folder / "out", "--shard-limit", "0"}, 2, "--shard-limit is 0");
    write_bytes(folder / "gpt2_124M.bin", std::string("\xc6\xd7\x34\x01\x03\0\0\0", 8));
    expect_failure({"convert", folder / "gpt2_124M.bin", folder / "out"}, 1, "is a model of llm.c, a GPT-2");
    write_bytes(folder / "file", "x");
    expect_failure({"convert", goldens / "llama", folder / "file"}, 1, "exists and is not an empty folder");
    expect_done({"convert", goldens / "llama", folder / "c"});
    const fs::path weights = folder / "c/step-00000000/weights.safetensors";
    std::string bytes = read_file(weights);
    bytes[bytes.size() / 2] ^= 1;
    write_bytes(weights, bytes);
    expect_failure({"convert", folder / "c/step-00000000", folder / "out"}, 1,
                   "weights.safetensors is damaged: XXH3-128");
    expect_failure({"convert", folder / "c", folder / "out"}, 1, "skipping");
    EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(Convert, AModelOfAnotherSystemBecomesAFolderThatTrains) {
    const TempFolder folder;
    const fs::path foreign = fs::path(KEEL_TEST_DIR) / "golden/foreign";
    fs::create_directory(folder / "in");
    fs::copy(foreign / "meta_llama2", folder / "in/weights");
    fs::copy(fs::path(KEEL_TEST_DIR) / "golden/tokenizer_corpus/spm_llama.model", folder / "in/tokenizer.model");  // the folder above
    const Outcome got = run_keel_words({"convert", "--from", "meta", folder / "in/weights", folder / "out"});
    ASSERT_EQ(got.code, 0) << got.err;
    EXPECT_NE(got.out.find("llama, 4688 parameters, bf16, from Meta's form, 2 files"), std::string::npos) << got.out;
    EXPECT_EQ(read_file(folder / "out/tokenizer.model"), read_file(folder / "in/tokenizer.model"));
    EXPECT_EQ(Json::parse(read_file(folder / "out/config.json"))["bos_token_id"], 1);
    expect_done({"convert", folder / "out", folder / "checkpoint"});
    expect_failure({"convert", "--from", "megatron", foreign / "meta_llama2", folder / "no"}, 1, "is not a folder with latest_checkpointed_iteration.txt");
    expect_failure({"convert", "--from", "gpt", foreign / "meta_llama2", folder / "no"}, 2, "give meta, megatron, llm.c or llama2.c");
    expect_failure({"convert", foreign / "meta_llama3", folder / "no"}, 1, "give --rope-factor");
    expect_failure({"convert", foreign / "megatron_virtual", folder / "no", "--vocab", "33"}, 1, "a vocabulary of 33 is larger");
    expect_failure({"eval", foreign / "meta_llama2", "--data", "x"}, 1, "keel convert");
    EXPECT_FALSE(fs::exists(folder / "no"));
    expect_failure({"convert", foreign / "meta_llama2", folder / "no", "--vocab", "33"}, 2, "--vocab is of a Megatron-LM checkpoint alone");
    expect_failure({"convert", foreign / "megatron_virtual", folder / "no", "--rope-factor", "8"}, 2, "--rope-factor is of a model of Meta or llm.c alone");
    expect_done({"convert", foreign / "meta_llama3", folder / "scaled", "--rope-factor", "32"});
    EXPECT_EQ(Json::parse(read_file(folder / "scaled/config.json"))["rope_scaling"]["factor"], 32);
}

TEST(Convert, ADamagedModelOfAnotherSystemLeavesNothing) {
    const TempFolder folder;
    fs::copy(fs::path(KEEL_TEST_DIR) / "golden/foreign/meta_tied", folder / "in");
    std::string bytes = read_file(folder / "in/consolidated.00.pth");
    bytes[bytes.find("data/0", bytes.find("byteorder")) + 100] ^= 1;
    write_bytes(folder / "in/consolidated.00.pth", bytes);
    expect_failure({"convert", folder / "in", folder / "out"}, 1, "is damaged: its");
    std::vector<std::string> left;
    for (const auto& entry : fs::directory_iterator(folder.path())) left.push_back(entry.path().filename());
    EXPECT_EQ(left, std::vector<std::string>{"in"});
}

TEST(Inspect, ShowsTheTensorsOfModelsOfOtherSystems) {
    const fs::path foreign = fs::path(KEEL_TEST_DIR) / "golden/foreign";
    const std::pair<const char*, const char*> kinds[] = {{"meta_llama2", "meta model"}, {"mistral", "meta model"}, {"megatron_tp2_pp2", "megatron model"},
                                                         {"llmc_bf16.bin", "llm.c model"}, {"llama2c_v0.bin", "llama2.c model"}, {"kinds.pt", "file of torch.save"}};
    for (const auto& [path, kind] : kinds) {
        const Outcome got = run_keel_words({"inspect", foreign / path, "--json", "--verify"});
        ASSERT_EQ(got.code, 0) << path << ": " << got.err;
        const Json report = Json::parse(got.out);
        EXPECT_EQ(report["kind"], kind);
        EXPECT_GE(report["tensors"].size(), 13u) << path;
        if (report.contains("model")) {
            EXPECT_EQ(report["model"]["ffn"], 24) << path;
        }
    }
    expect_failure({"inspect", foreign / "old.pt"}, 1, "was saved by a PyTorch before 1.6");
}

TEST(Inspect, TellsEachKindByItsContent) {
    const TempFolder folder;
    expect_done({"convert", goldens / "qwen3", folder / "c"});
    fs::copy(goldens / "qwen3/model.safetensors", folder / "nameless");
    const std::pair<fs::path, const char*> kinds[] = {{folder / "c", "run"},
                                                      {folder / "c/step-00000000", "checkpoint"},
                                                      {goldens / "qwen3", "model folder"},
                                                      {folder / "nameless", "safetensors"},
                                                      {goldens / "qwen3/config.json", "config.json of a model"}};
    for (const auto& [path, kind] : kinds) {
        const Outcome json = run_keel_words({"inspect", path, "--json"});
        ASSERT_EQ(json.code, 0) << json.err;
        EXPECT_EQ(Json::parse(json.out)["kind"], kind);
        const Outcome text = run_keel_words({"inspect", path});
        EXPECT_NE(text.out.find(kind), std::string::npos) << text.out;
    }
    const Json model = Json::parse(run_keel_words({"inspect", goldens / "qwen3", "--json"}).out)["model"];
    EXPECT_EQ(model["parameters"], 5488);
    EXPECT_EQ(model["head_dim"], 8);
    write_bytes(folder / "notes", "hello");
    expect_failure({"inspect", folder / "notes"}, 1, "is nothing keel knows: looked for");
    expect_failure({"inspect", folder / "absent"}, 1, "no such file or folder");
}

TEST(Inspect, VerifyFindsWhatALookDoesNot) {
    const TempFolder folder;
    expect_done({"convert", goldens / "llama", folder / "c"});
    const fs::path weights = folder / "c/step-00000000/weights.safetensors";
    std::string bytes = read_file(weights);
    bytes.back() ^= 1;
    write_bytes(weights, bytes);
    EXPECT_EQ(run_keel_words({"inspect", folder / "c/step-00000000"}).code, 0);
    expect_failure({"inspect", folder / "c/step-00000000", "--verify"}, 1, "weights.safetensors is damaged");
    EXPECT_NE(run_keel_words({"inspect", folder / "c", "--verify"}).out.find("damaged"), std::string::npos);
}

}  // namespace
}  // namespace keel::test
