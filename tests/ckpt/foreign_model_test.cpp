// Checkpoints of other systems: the same tiny model in each form (tests/golden/make_foreign.py), expected bit for bit; what
// is wrong with a checkpoint is said.
#include "ckpt/foreign_model.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/model_folder.h"
#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

const fs::path forms = fs::path(KEEL_TEST_DIR) / "golden/foreign";

std::uint32_t fnv1a32(std::string_view text) {
    std::uint32_t h = 2166136261u;
    for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
    return h;
}

ForeignModel open_form(const fs::path& path, ForeignOptions options = {}) {
    const auto kind = find_foreign(path);
    if (!kind) fail(path.string(), " was not recognised: ", foreign_model(path));
    return open_foreign(path, *kind, options);
}

// Every weight of a model folder made of `model` is what its name says, and none is missing.
void expect_the_model(const ForeignModel& model, const std::string& what) {
    check_bytes(model);
    const TempFolder folder;
    const auto read = [&](const std::string& param, std::int64_t first, std::int64_t count, Dtype as, std::byte* out) {
        model.weights.read(param, first, count, as, out);
    };
    save_model_folder(folder / "m", model.shape, read, {.tokenizer_from = {}, .dtype = Dtype::f32});
    const SafetensorsSet set(folder / "m", {});
    EXPECT_EQ(set.tensors().size(), tensor_slices(model.shape).size()) << what;
    for (const auto& [name, entry] : set.tensors()) {
        std::vector<float> x(static_cast<std::size_t>(entry.tensor->elements()));
        entry.file->read(*entry.tensor, 0, entry.tensor->elements(), Dtype::f32, reinterpret_cast<std::byte*>(x.data()));
        for (std::size_t i = 0; i < x.size(); ++i) {
            const float expected = static_cast<float>(static_cast<int>((fnv1a32(name) + 7919 * i) % 255) - 127) / 128;
            ASSERT_EQ(x[i], expected) << what << ": " << name << "[" << i << "]";
        }
    }
}

// A form that a test may spoil.
class Copy {
public:
    explicit Copy(const std::string& form) : path_(folder_ / form) { fs::copy(forms / form, path_, fs::copy_options::recursive); }
    const fs::path& path() const { return path_; }
    void replace(const std::string& file, const std::string& what, const std::string& with) const {
        std::string text = read_file(path_ / file);
        const auto at = text.find(what);
        ASSERT_NE(at, std::string::npos) << what;
        write_bytes(path_ / file, text.replace(at, what.size(), with));
    }

private:
    TempFolder folder_;
    fs::path path_;
};

TEST(ForeignModel, OfMetaIsMergedAndItsRotaryPairsAreHalves) {
    const ForeignModel two = open_form(forms / "meta_llama2");
    EXPECT_EQ(two.description, "Meta's form, 2 files");
    EXPECT_EQ(two.shape.vocab, 24);  // params.json says -1
    EXPECT_EQ(two.shape.ffn, 24);
    EXPECT_EQ(two.shape.rope_base, 10000);
    EXPECT_EQ(two.shape.dtype, "bf16");
    expect_the_model(two, "Llama 2, embedding cut by columns");
    const ForeignModel three = open_form(forms / "meta_llama3", {.rope_factor = 8});
    EXPECT_EQ(three.shape.rope_scaling, "llama3");
    EXPECT_EQ(three.shape.rope_factor, 8);
    EXPECT_EQ(three.shape.rope_original_max_position, 8192);
    expect_the_model(three, "Llama 3, embedding cut by rows");
}

TEST(ForeignModel, OfMetaIsTiedWhereItHasNoOutputOrACopyOfTheEmbedding) {
    const ForeignModel tied = open_form(forms / "meta_tied");
    EXPECT_TRUE(tied.shape.tied);
    expect_the_model(tied, "tied");
    EXPECT_FALSE(open_form(forms / "meta_llama2").shape.tied);
}

TEST(ForeignModel, OfMistralIsOneSafetensorsWithAWindow) {
    const ForeignModel model = open_form(forms / "mistral");
    EXPECT_EQ(model.shape.family, Family::mistral);
    EXPECT_EQ(model.shape.window, 4096);
    expect_the_model(model, "Mistral");
}

TEST(ForeignModel, OfMegatronIsMergedOverTensorAndPipelineRanksWithoutItsPadding) {
    const ForeignModel core = open_form(forms / "megatron_tp2_pp2");
    EXPECT_EQ(core.description, "a checkpoint of Megatron-LM, iteration 10, tp 2, pp 2");
    EXPECT_EQ(core.shape.vocab, 24);  // of 32 rows
    EXPECT_EQ(core.shape.rope_base, 500000);
    EXPECT_EQ(core.shape.max_position, 512);
    EXPECT_DOUBLE_EQ(core.shape.init_std, 0.01);
    expect_the_model(core, "Megatron Core, tp 2, pp 2");
    expect_the_model(open_form(forms / "megatron_tp2_pp2/iter_0000010"), "the iteration's own folder");
}

TEST(ForeignModel, OfMegatronKeepsTheOrderOfLayersOfVirtualStages) {
    const ForeignModel model = open_form(forms / "megatron_virtual", {.vocab = 24});
    EXPECT_EQ(model.shape.family, Family::qwen2);
    EXPECT_EQ(model.shape.layers, 4);
    expect_the_model(model, "2 stages of 2 chunks, biases, norms apart");
}

TEST(ForeignModel, OfOlderMegatronIsReadByItsOwnNames) {
    const ForeignModel model = open_form(forms / "megatron_older");
    EXPECT_EQ(model.shape.family, Family::qwen3);
    EXPECT_TRUE(model.shape.tied);
    expect_the_model(model, "language_model.encoder, tied, norms of q and k");
}

TEST(ForeignModel, OfMegatronsDistributedFormatIsPutTogetherFromPieces) {
    const ForeignModel model = open_form(forms / "megatron_dist");
    EXPECT_EQ(model.description, "a checkpoint of Megatron-LM, iteration 10, torch_dist");
    EXPECT_EQ(model.shape.vocab, 24);
    expect_the_model(model, "stacked layers, in pieces of two ranks");
    const Copy copy("megatron_dist");
    const fs::path file = copy.path() / "iter_0000010/__0_0.distcp";
    std::string bytes = read_file(file);
    write_bytes(file, bytes.substr(0, bytes.size() / 2));
    expect_error([&] { open_form(copy.path()); }, {"__0_0.distcp has ", "the file is cut"});
    std::size_t name = bytes.size() / 2;  // of a storage, behind its header: bytes 28 and 29 say how far its content is
    do name = bytes.find("archive/data/0", name + 1);
    while (name != std::string::npos && bytes.compare(name - 30, 4, "PK\3\4") != 0);
    ASSERT_NE(name, std::string::npos);
    const std::size_t at = name + 14 + static_cast<unsigned char>(bytes[name - 2]) + 256 * static_cast<std::size_t>(static_cast<unsigned char>(bytes[name - 1]));
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    write_bytes(file, bytes);
    expect_error([&] { check_bytes(open_form(copy.path())); }, {"__0_0.distcp: member \"archive/data/0\" is damaged"});
}

TEST(ForeignModel, OfMegatronSaysThatItsVocabularyMayBePadding) {
    std::string warned;
    const ForeignModel model = open_form(forms / "megatron_virtual", {.warn = [&](const std::string& text) { warned += text; }});
    EXPECT_EQ(model.shape.vocab, 32);
    EXPECT_NE(warned.find("how many of the 32 rows of its embedding are tokens"), std::string::npos) << warned;
    expect_error([] { open_form(forms / "megatron_virtual", {.vocab = 33}); }, {"a vocabulary of 33 is larger than its embedding, which has 32 rows"});
}

TEST(ForeignModel, OfLlmcHasItsFeedForwardSizeFromTheSizeOfTheFile) {
    for (const char* file : {"llmc_f32.bin", "llmc_bf16.bin"}) {
        const ForeignModel model = open_form(forms / file);
        EXPECT_EQ(model.shape.ffn, 24);
        EXPECT_EQ(model.shape.rope_factor, 8);
        expect_the_model(model, file);
    }
    const TempFolder folder;
    std::string bytes = read_file(forms / "llmc_bf16.bin");
    write_bytes(folder / "cut.bin", bytes.substr(0, bytes.size() - 2));
    expect_error([&] { open_form(folder / "cut.bin"); }, {"10398 bytes do not fit a model of its header"});
    bytes[4] = 1;
    write_bytes(folder / "version.bin", bytes);
    expect_error([&] { open_form(folder / "version.bin"); }, {"version 1 of llm.c's model files; keel reads 3 (float32) and 5 (bf16)"});
}

TEST(ForeignModel, OfLlama2cIsKnownByItsMagicOrItsSizeToTheByte) {
    EXPECT_TRUE(open_form(forms / "llama2c_v0.bin").shape.tied);
    expect_the_model(open_form(forms / "llama2c_v0.bin"), "version 0");
    EXPECT_FALSE(open_form(forms / "llama2c_v1.bin").shape.tied);
    expect_the_model(open_form(forms / "llama2c_v1.bin"), "version 1");
    const TempFolder folder;
    std::string bytes = read_file(forms / "llama2c_v0.bin");
    write_bytes(folder / "cut.bin", bytes.substr(0, bytes.size() - 1));
    EXPECT_FALSE(find_foreign(folder / "cut.bin"));
    expect_error([&] { open_foreign(folder / "cut.bin", ForeignKind::llama2c, {}); }, {"is not a model file of llama2.c"});
    bytes = read_file(forms / "llama2c_v1.bin");
    bytes[4] = 2;
    write_bytes(folder / "q8.bin", bytes);
    expect_error([&] { open_form(folder / "q8.bin"); }, {"version 2", "quantised to 8 bits", "keel reads 0 and 1"});
}

TEST(ForeignModel, ReadsAnyRangeOfAParameter) {
    const ForeignModel model = open_form(forms / "megatron_tp2_pp2");
    const std::int64_t all = 32 * 16;  // qkv: rows from both ranks, in groups
    std::vector<float> whole(all), piece(all);
    model.weights.read("layers.1.qkv", 0, all, Dtype::f32, reinterpret_cast<std::byte*>(whole.data()));
    for (std::int64_t first = 0; first < all; first += 37)
        for (const std::int64_t count : {std::int64_t{1}, std::int64_t{15}, std::int64_t{100}, all - first}) {
            const std::int64_t n = std::min(count, all - first);
            model.weights.read("layers.1.qkv", first, n, Dtype::f32, reinterpret_cast<std::byte*>(piece.data()));
            ASSERT_TRUE(std::equal(piece.begin(), piece.begin() + n, whole.begin() + first)) << first << ", " << n;
        }
}

TEST(ForeignModel, WhatDoesNotFitItsParamsIsSaid) {
    const auto refuses = [](const std::string& what, const std::string& with, std::initializer_list<std::string> parts) {
        const Copy copy("meta_llama2");
        copy.replace("params.json", what, with);
        expect_error([&] { open_form(copy.path()); }, parts);
    };
    refuses("\"ffn_dim_multiplier\": 0.55", "\"ffn_dim_multiplier\": 1.3", {"the keys make the feed-forward size 56", "w1.weight has 24 rows in 2 files"});
    refuses("\"vocab_size\": -1", "\"vocab_size\": 32", {"\"vocab_size\" is 32, but tok_embeddings.weight has 24 rows"});
    refuses("\"n_layers\": 2", "\"n_layers\": 3", {"missing    layers.2.attention_norm.weight [16]", "missing    layers.2.feed_forward.w2.weight [16, 12]"});
    refuses("\"n_layers\": 2", "\"n_layers\": 1", {"unexpected layers.1.attention.wk.weight [4, 16]", "consolidated.01.pth"});
    refuses("\"n_kv_heads\": 2", "\"n_kv_heads\": 4", {"misshapen  layers.0.attention.wk.weight is [4, 16], the model's shape makes it [8, 16]"});
    refuses("\"n_kv_heads\": 2", "\"n_kv_heads\": 1", {"1 of keys and values do not divide among 2 files"});
    refuses("\"dim\": 16", "\"moe\": 16", {"\"dim\" is absent; a size is required"});
    refuses("\"vocab_size\": -1", "\"n_experts\": 8", {"\"n_experts\" is 8; keel does not know", "--allow-unexpected"});
    expect_error([] { open_form(forms / "meta_llama3"); }, {"use_scaled_rope", "give --rope-factor"});
    const Copy copy("meta_llama2");
    fs::rename(copy.path() / "consolidated.01.pth", copy.path() / "consolidated.02.pth");
    expect_error([&] { open_form(copy.path()); }, {"consolidated.01.pth is missing, but consolidated.02.pth is there"});
}

TEST(ForeignModel, OfReleasedShapesTheRotaryFactorIsKnown) {
    const Copy copy("meta_llama3");
    copy.replace("params.json", "\"dim\": 16, \"n_layers\": 2", "\"dim\": 3072, \"n_layers\": 28");
    expect_error([&] { open_form(copy.path()); }, {"vocab_size"});  // no longer asks for the factor: 3.2, 3B
}

TEST(ForeignModel, ARankThatIsMissingOrOfAnotherRunIsSaid) {
    {
        const Copy copy("megatron_tp2_pp2");
        fs::remove_all(copy.path() / "iter_0000010/mp_rank_01_001");
        expect_error([&] { open_form(copy.path()); }, {"mp_rank_01_001/model_optim_rng.pt", "No such file"});
    }
    {
        const Copy copy("megatron_tp2_pp2");
        for (const char* rank : {"00", "01"}) fs::remove_all(copy.path() / concat("iter_0000010/mp_rank_", rank, "_001"));
        expect_error([&] { open_form(copy.path()); }, {"its files hold 1 layers in 1 stage, but its args say 2"});
    }
    {
        const Copy copy("megatron_tp2_pp2");
        write_bytes(copy.path() / "latest_checkpointed_iteration.txt", "20");
        expect_error([&] { open_form(copy.path()); }, {"names iteration 20", "iter_0000020 is not there"});
        write_bytes(copy.path() / "latest_checkpointed_iteration.txt", "../../etc");
        expect_error([&] { open_form(copy.path()); }, {"holds \"../../etc\", not the number of an iteration"});
    }
}

TEST(ForeignModel, DamageBetweenTheFirstAndTheLastByteIsFound) {
    const Copy copy("meta_tied");
    std::string bytes = read_file(copy.path() / "consolidated.00.pth");
    const std::size_t at = bytes.find("data/0", bytes.find("byteorder")) + 100;  // inside of a storage
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    write_bytes(copy.path() / "consolidated.00.pth", bytes);
    const ForeignModel model = open_form(copy.path());
    expect_error([&] { check_bytes(model); }, {"consolidated.00.pth: member \"consolidated.00/data/", "is damaged"});
}

TEST(ForeignModel, OthersAreToldTheWay) {
    const TempFolder folder;
    const auto file = [&](const std::string& name, std::string_view bytes) {
        fs::create_directories(fs::path(folder / name).parent_path());
        write_bytes(folder / name, bytes);
    };
    const auto told = [&](const fs::path& path, const std::string& what, const std::string& way) {
        const std::string text = foreign_model(path);
        EXPECT_NE(text.find(what), std::string::npos) << path << ": " << text;
        EXPECT_NE(text.find(way), std::string::npos) << path << ": " << text;
    };
    told(forms / "meta_llama2", "a model in the form of its makers", "keel convert");
    told(forms / "megatron_older", "a checkpoint of Megatron-LM", "keel convert");
    told(forms / "meta_llama2/consolidated.00.pth", "one file of a checkpoint", "give its folder");
    told(forms / "megatron_older/iter_0000010/mp_rank_00/model_optim_rng.pt", "one file of a checkpoint", "give its folder");
    told(forms / "kinds.pt", "from which alone no model's shape is known", "safetensors");
    file("dcp/__0_0.distcp", "x");
    told(folder / "dcp", "a distributed checkpoint of PyTorch", "safetensors");
    file("megatron/latest_checkpointed_iteration.txt", "100"), file("megatron/iter_0000100/__0_0.distcp", "x");
    expect_error([&] { open_form(folder / "megatron"); }, {"in neither of the formats that keel reads", "--ckpt-format torch"});
    file("gpt2_124M.bin", std::string_view("\xc6\xd7\x34\x01\x03\0\0\0", 8));
    told(folder / "gpt2_124M.bin", "a model of llm.c, a GPT-2", "its token files keel does read");
    file("model.gguf", "GGUF\3");
    told(folder / "model.gguf", "llama.cpp", "model folder");
    EXPECT_EQ(foreign_model(folder / "nothing"), "");
    // Both forms side by side: the one that keel reads counts, unless the other is asked for.
    const Copy copy("meta_tied");
    write_bytes(copy.path() / "config.json", "{}");
    EXPECT_FALSE(find_foreign(copy.path()));
    EXPECT_EQ(foreign_model(copy.path()), "");
    expect_the_model(open_foreign(copy.path(), ForeignKind::meta, {}), "asked for");
    expect_error([&] { open_foreign(copy.path(), ForeignKind::megatron, {}); }, {"is not a folder with latest_checkpointed_iteration.txt"});
}

}  // namespace
}  // namespace keel::test
