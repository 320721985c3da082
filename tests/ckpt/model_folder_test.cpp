// Model folders of every family, written by another program, in and out; and every way a folder can be wrong.
#include "ckpt/model_folder.h"

#include <map>
#include <nlohmann/json.hpp>

#include "ckpt/safetensors.h"
#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path goldens = fs::path(KEEL_TEST_DIR) / "golden/folders";
constexpr const char* families[] = {"llama", "smollm2", "mistral", "qwen2", "qwen3", "olmo2", "phi3"};

// Element i of the golden tensor `name`; the same formula as tests/golden/make_folders.py.
float golden_value(const std::string& name, std::int64_t i) {
    std::uint32_t h = 2166136261u;
    for (const char c : name) h = (h ^ static_cast<std::uint8_t>(c)) * 16777619u;
    return (static_cast<float>((h + static_cast<std::uint64_t>(i) * 7919u) % 255) - 127) / 128;
}

OwnedTensors params_of(const ModelShape& shape, Dtype dtype) {
    OwnedTensors params;
    for (const ParamSpec& p : param_specs(shape)) params.add(p.name, dtype, p.shape);
    return params.blank();
}

// Where each golden tensor must land, spelled out independently of tensor_slices: (parameter, first row, tensor).
struct Place {
    std::string param;
    std::int64_t row;
    std::string tensor;
    std::int64_t rows, cols;
};
std::vector<Place> places(const ModelShape& s) {
    std::vector<Place> list{{"embed", 0, "model.embed_tokens.weight", 24, 16},
                            {"final_norm", 0, "model.norm.weight", 16, 1}};
    if (!s.tied) list.push_back({"head", 0, "lm_head.weight", 24, 16});
    const std::int64_t q = 4 * s.head_dim, kv = 2 * s.head_dim;
    const bool olmo2 = s.family == Family::olmo2;
    for (const std::string i : {"0", "1"}) {
        const std::string to = "layers." + i + ".", from = "model.layers." + i + ".";
        if (s.family == Family::phi3) {
            list.push_back({to + "attn_norm", 0, from + "input_layernorm.weight", 16, 1});
            list.push_back({to + "qkv", 0, from + "self_attn.qkv_proj.weight", q + 2 * kv, 16});
            list.push_back({to + "out", 0, from + "self_attn.o_proj.weight", 16, q});
            list.push_back({to + "ffn_norm", 0, from + "post_attention_layernorm.weight", 16, 1});
            list.push_back({to + "gate_up", 0, from + "mlp.gate_up_proj.weight", 40, 16});
            list.push_back({to + "down", 0, from + "mlp.down_proj.weight", 16, 20});
            continue;
        }
        const std::vector<Place> layer{
            {"attn_norm", 0, olmo2 ? "post_attention_layernorm.weight" : "input_layernorm.weight", 16, 1},
            {"qkv", 0, "self_attn.q_proj.weight", q, 16},
            {"qkv", q, "self_attn.k_proj.weight", kv, 16},
            {"qkv", q + kv, "self_attn.v_proj.weight", kv, 16},
            {"out", 0, "self_attn.o_proj.weight", 16, q},
            {"ffn_norm", 0, olmo2 ? "post_feedforward_layernorm.weight" : "post_attention_layernorm.weight", 16, 1},
            {"gate_up", 0, "mlp.gate_proj.weight", 20, 16},
            {"gate_up", 20, "mlp.up_proj.weight", 20, 16},
            {"down", 0, "mlp.down_proj.weight", 16, 20}};
        for (Place p : layer) list.push_back({to + p.param, p.row, from + p.tensor, p.rows, p.cols});
        if (s.qkv_bias) {
            list.push_back({to + "qkv_bias", 0, from + "self_attn.q_proj.bias", q, 1});
            list.push_back({to + "qkv_bias", q, from + "self_attn.k_proj.bias", kv, 1});
            list.push_back({to + "qkv_bias", q + kv, from + "self_attn.v_proj.bias", kv, 1});
        }
        if (s.qk_norm) {
            list.push_back({to + "q_norm", 0, from + "self_attn.q_norm.weight", olmo2 ? q : s.head_dim, 1});
            list.push_back({to + "k_norm", 0, from + "self_attn.k_norm.weight", olmo2 ? kv : s.head_dim, 1});
        }
    }
    return list;
}

TEST(ModelFolder, LoadsEveryFamilyIntoFusedParameters) {
    for (const char* family : families) {
        SCOPED_TRACE(family);
        const ModelShape shape = read_model_shape(goldens / family);
        for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
            const OwnedTensors params = params_of(shape, dtype);
            load_weights(goldens / family, shape, params.all());
            std::map<std::string, const NamedTensor*> by_name;
            for (const NamedTensor& p : params.all()) by_name[p.name] = &p;
            std::int64_t covered = 0, total = 0;
            for (const Place& place : places(shape)) {
                const NamedTensor& p = *by_name.at(place.param);
                for (std::int64_t i = 0; i < place.rows * place.cols; ++i) {
                    float got;
                    convert(stored(dtype), p.data + (place.row * place.cols + i) * size_bytes(dtype), Dtype::f32,
                            reinterpret_cast<std::byte*>(&got), 1);
                    ASSERT_EQ(got, golden_value(place.tensor, i)) << place.tensor << " element " << i;
                }
                covered += place.rows * place.cols;
            }
            for (const NamedTensor& p : params.all()) total += element_count(p.shape);
            EXPECT_EQ(covered, total);
        }
    }
}

TEST(ModelFolder, ReadsTheConfigsOfTheGoldens) {
    const ModelShape llama = read_model_shape(goldens / "llama");
    EXPECT_EQ(llama.rope_scaling, "llama3");
    EXPECT_EQ(llama.rope_base, 500000);
    EXPECT_EQ(llama.eos_ids, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(llama.dtype, "f32");
    const ModelShape smollm = read_model_shape(goldens / "smollm2");
    EXPECT_TRUE(smollm.tied);
    EXPECT_EQ(smollm.dtype, "bf16");
    const ModelShape mistral = read_model_shape(goldens / "mistral");
    EXPECT_EQ(mistral.window, 6);
    EXPECT_EQ(mistral.rope_base, 1e6);
    EXPECT_EQ(mistral.dtype, "f16");
    const ModelShape qwen3 = read_model_shape(goldens / "qwen3");
    EXPECT_EQ(qwen3.head_dim, 8);
    EXPECT_TRUE(qwen3.qk_norm && qwen3.tied);
    EXPECT_EQ(qwen3.window, 0);
    EXPECT_TRUE(read_model_shape(goldens / "qwen2").qkv_bias);
    const ModelShape olmo2 = read_model_shape(goldens / "olmo2");
    EXPECT_TRUE(olmo2.post_norm && olmo2.qk_norm && olmo2.qk_norm_whole);
    EXPECT_EQ(olmo2.norm_eps, 1e-6);
    const ModelShape phi3 = read_model_shape(goldens / "phi3");
    EXPECT_EQ(phi3.rope_fraction, 0.5);
    EXPECT_EQ(phi3.rope_scaling, "longrope");
    EXPECT_EQ(phi3.rope_factor, 8);
    EXPECT_EQ(phi3.rope_original_max_position, 64);
    EXPECT_EQ(phi3.rope_short_factors, (std::vector<double>{1.25}));
    EXPECT_EQ(phi3.rope_long_factors, (std::vector<double>{4.5}));
    EXPECT_EQ(phi3.window, 47);
}

// A rank's rectangles of parameters are the same elements as those of the whole, and nothing around them is touched.
TEST(ModelFolder, ReadsRectanglesOfParameters) {
    for (const char* family : {"llama", "qwen2", "phi3"}) {
        SCOPED_TRACE(family);
        const ModelShape shape = read_model_shape(goldens / family);
        const OwnedTensors params = params_of(shape, Dtype::f32);
        load_weights(goldens / family, shape, params.all());
        const FolderWeights weights(goldens / family, shape);
        for (const NamedTensor& p : params.all()) {
            const Rect all = extent(p.shape);
            for (const Rect r :
                 {Rect{0, 1, all.cols / 4, all.cols / 2}, Rect{all.rows / 3, (all.rows + 1) / 2, 1, all.cols - 2},
                  Rect{all.rows / 2, all.rows - all.rows / 2, 0, all.cols}, Rect{all.rows, 0, 0, all.cols}}) {
                const std::int64_t stride = r.cols + 3;
                std::vector<float> part(static_cast<std::size_t>(r.rows * stride), -7.0f);
                const TensorPiece piece{p.name, Dtype::f32, p.shape, r.row,
                                        r.rows, r.col,      r.cols,  reinterpret_cast<std::byte*>(part.data()),
                                        stride};
                weights.read({&piece, 1});
                for (std::int64_t i = 0; i < r.rows * stride; ++i) {
                    const std::int64_t row = r.row + i / stride, col = i % stride;
                    const float want =
                        col < r.cols ? reinterpret_cast<const float*>(p.data)[row * all.cols + r.col + col] : -7.0f;
                    ASSERT_EQ(part[static_cast<std::size_t>(i)], want) << p.name << " row " << row << " column " << col;
                }
            }
        }
    }
}

// Every tensor of both sets has the same bytes.
void expect_same_tensors(const fs::path& a, const fs::path& b) {
    const SafetensorsSet x(a, {}), y(b, {});
    ASSERT_EQ(x.tensors().size(), y.tensors().size());
    for (const auto& [name, entry] : x.tensors()) {
        const auto other = y.find(name);
        ASSERT_TRUE(other) << name;
        EXPECT_EQ(entry.tensor->dtype, other->tensor->dtype) << name;
        EXPECT_EQ(entry.tensor->shape, other->tensor->shape) << name;
        std::vector<std::byte> p(static_cast<std::size_t>(entry.tensor->size_bytes())), q(p.size());
        entry.file->read_bytes(*entry.tensor, 0, p);
        other->file->read_bytes(*other->tensor, 0, q);
        EXPECT_TRUE(p == q) << name;
    }
}

TEST(ModelFolder, RoundTripsEveryFamilyBitForBit) {
    for (const char* family : {"llama", "smollm2", "mistral", "qwen2", "qwen3", "olmo2", "phi3"}) {
        SCOPED_TRACE(family);
        const TempFolder folder;
        const ModelShape shape = read_model_shape(goldens / family);
        const Dtype dtype = dtype_named(shape.dtype);
        const OwnedTensors params = params_of(shape, dtype);
        load_weights(goldens / family, shape, params.all());
        save_model_folder(folder / "one", shape, params.all(), {.tokenizer_from = {}, .dtype = dtype});
        save_model_folder(folder / "many", shape, params.all(),
                          {.tokenizer_from = {}, .dtype = dtype, .shard_limit_bytes = 3000});
        expect_same_tensors(goldens / family, folder / "one");
        expect_same_tensors(goldens / family, folder / "many");
        EXPECT_TRUE(fs::exists(folder / "one/model.safetensors"));
        EXPECT_TRUE(fs::exists(folder / "many/model.safetensors.index.json"));
        EXPECT_FALSE(fs::exists(folder / "many/model.safetensors"));
        // Unknown keys and the mathematics survive: what is written reads as the same shape.
        EXPECT_EQ(model_config_text(read_model_shape(folder / "one")), model_config_text(shape));
        const Json config = Json::parse(read_file(folder / "one/config.json"));
        EXPECT_EQ(config["transformers_version"], "4.51.0");
        EXPECT_EQ(config["use_cache"], true);
        EXPECT_FALSE(config.contains("rope_parameters"));
    }
}

TEST(ModelFolder, ExportDtypeAndShardLimitChangeTheFiles) {
    const TempFolder folder;
    const ModelShape shape = read_model_shape(goldens / "mistral");  // f16 in the file
    const OwnedTensors params = params_of(shape, Dtype::f32);
    load_weights(goldens / "mistral", shape, params.all());
    save_model_folder(folder / "f32", shape, params.all(), {.tokenizer_from = {}, .dtype = Dtype::f32});
    save_model_folder(folder / "bf16", shape, params.all(), {.tokenizer_from = {}, .dtype = Dtype::bf16});
    EXPECT_EQ(read_model_shape(folder / "f32").dtype, "f32");
    EXPECT_EQ(read_model_shape(folder / "bf16").dtype, "bf16");
    const SafetensorsFile f32(folder / "f32/model.safetensors"), bf16_file(folder / "bf16/model.safetensors");
    EXPECT_EQ(f32.find("lm_head.weight")->dtype, StoredDtype::F32);
    EXPECT_EQ(bf16_file.find("lm_head.weight")->dtype, StoredDtype::BF16);
    EXPECT_EQ(Json::parse(read_file(folder / "f32/config.json"))["sliding_window"], 6);

    // 1 KiB: the largest tensor (640 elements of f32) needs a shard of its own; others share.
    save_model_folder(folder / "shards", shape, params.all(),
                      {.tokenizer_from = {}, .dtype = Dtype::f32, .shard_limit_bytes = 1024});
    const SafetensorsSet set(folder / "shards", [](const std::string& w) { ADD_FAILURE() << w; });
    std::size_t oversize = 0;
    for (const SafetensorsFile& file : set.files()) {
        std::int64_t total = 0;
        for (const StoredTensor& t : file.tensors()) total += t.size_bytes();
        if (total > 1024) {
            EXPECT_EQ(file.tensors().size(), 1u);
            ++oversize;
        }
    }
    EXPECT_GT(oversize, 0u);
    const Json index = Json::parse(read_file(folder / "shards/model.safetensors.index.json"));
    EXPECT_EQ(index["metadata"]["total_size"], parameter_count(shape) * 4);
}

// The golden folder `family` copied, so that it can be broken.
class Copy {
public:
    explicit Copy(const char* family) { fs::copy(goldens / family, path()); }
    fs::path path() const { return folder_ / "m"; }
    void change_config(const Json& changes) {
        Json config = Json::parse(read_file(path() / "config.json"));
        config.update(changes);
        write_bytes(path() / "config.json", config.dump());
    }
    // Rewrites model.safetensors after `change` edited the list of tensors.
    void change_tensors(const std::function<void(std::map<std::string, TensorSource>&)>& change) {
        const fs::path file = path() / "model.safetensors";
        std::map<std::string, TensorSource> tensors;
        {
            const SafetensorsFile old(file);
            for (const StoredTensor& t : old.tensors()) {
                std::vector<std::byte> bytes(static_cast<std::size_t>(t.size_bytes()));
                old.read_bytes(t, 0, bytes);
                tensors[t.name] = {t.name, t.dtype, t.shape, [bytes](const ByteSink& out) { out(bytes); }};
            }
        }
        change(tensors);
        std::vector<TensorSource> list;
        for (auto& [name, t] : tensors) list.push_back(t);
        write_safetensors_file(file, list);
    }
    void load(const LoadWeightsOptions& options = {}) const {
        const ModelShape shape = read_model_shape(path());
        const OwnedTensors params = params_of(shape, Dtype::f32);
        load_weights(path(), shape, params.all(), options);
    }

private:
    TempFolder folder_;
};

TensorSource filled(const std::string& name, std::vector<std::int64_t> shape, std::byte fill) {
    const auto count = static_cast<std::size_t>(element_count(shape)) * 2;
    return {name, StoredDtype::BF16, std::move(shape),
            [=](const ByteSink& out) { out(std::vector<std::byte>(count, fill)); }};
}

TEST(ModelFolder, ListsAllMissingUnexpectedAndMisshapenTensors) {
    Copy copy("llama");
    copy.change_tensors([](auto& t) {
        t.erase("model.layers.0.mlp.up_proj.weight");
        t.erase("model.layers.1.self_attn.q_proj.weight");
        t["model.layers.0.self_attn.q_proj.bias"] = filled("model.layers.0.self_attn.q_proj.bias", {16}, std::byte{0});
        t["extra"] = filled("extra", {2}, std::byte{0});
        t["model.norm.weight"] = filled("model.norm.weight", {17}, std::byte{0});
    });
    expect_error([&] { copy.load(); }, {"missing    model.layers.0.mlp.up_proj.weight [20, 16]",
                                        "missing    model.layers.1.self_attn.q_proj.weight",
                                        "unexpected model.layers.0.self_attn.q_proj.bias [16]", "unexpected extra [2]",
                                        "model.norm.weight is [17], config.json makes it [16]"});
}

TEST(ModelFolder, UnexpectedTensorsPassOnlyWhenAllowedAndAreTold) {
    Copy copy("llama");
    copy.change_tensors([](auto& t) { t["extra"] = filled("extra", {2}, std::byte{0}); });
    expect_error([&] { copy.load(); }, {"unexpected extra"});
    std::string told;
    copy.load({.allow_unexpected = true, .warn = [&](const std::string& text) { told += text; }});
    EXPECT_NE(told.find("extra [2] is not used"), std::string::npos) << told;
}

TEST(ModelFolder, RotaryTablesOfOldFilesAreIgnored) {
    Copy copy("llama");
    copy.change_tensors([](auto& t) {
        for (const char* table : {"inv_freq", "cos_cached", "sin_cached"}) {
            const std::string name = concat("model.layers.0.self_attn.rotary_emb.", table);
            t[name] = filled(name, {2}, std::byte{1});
        }
    });
    EXPECT_NO_THROW(copy.load());
}

TEST(ModelFolder, TypesThatAreNoWeightsAreRefused) {
    Copy copy("llama");
    copy.change_tensors([](auto& t) { t["model.norm.weight"].dtype = StoredDtype::I32; });
    expect_error([&] { copy.load(); }, {"unreadable model.norm.weight is I32"});
}

TEST(ModelFolder, TiedHeadsMustBeTheEmbedding) {
    Copy absent("smollm2");
    EXPECT_NO_THROW(absent.load());
    Copy equal("smollm2");
    equal.change_tensors([](auto& t) {
        t["lm_head.weight"] = t["model.embed_tokens.weight"];
        t["lm_head.weight"].name = "lm_head.weight";
    });
    EXPECT_NO_THROW(equal.load());
    Copy drifted("smollm2");
    drifted.change_tensors([](auto& t) { t["lm_head.weight"] = filled("lm_head.weight", {24, 16}, std::byte{0x3f}); });
    expect_error([&] { drifted.load(); }, {"tie_word_embeddings is true", "element 0 differs"});
    Copy shape("smollm2");
    shape.change_tensors([](auto& t) { t["lm_head.weight"] = filled("lm_head.weight", {25, 16}, std::byte{0}); });
    expect_error([&] { shape.load(); }, {"[25, 16] against [24, 16]"});
}

TEST(ModelFolder, UntiedModelsNeedTheirHeadAndNeverTieByGuess) {
    Copy missing("llama");
    missing.change_tensors([](auto& t) { t.erase("lm_head.weight"); });
    expect_error([&] { missing.load(); }, {"missing    lm_head.weight [24, 16]", "tie_word_embeddings is false"});
    Copy equal("llama");  // untied, though the bytes are equal: both matrices stay
    equal.change_tensors([](auto& t) {
        t["lm_head.weight"] = t["model.embed_tokens.weight"];
        t["lm_head.weight"].name = "lm_head.weight";
    });
    EXPECT_FALSE(read_model_shape(equal.path()).tied);
    EXPECT_NO_THROW(equal.load());
}

TEST(ModelFolder, DtypeComesFromTheWeightsWhereTheConfigIsSilent) {
    for (const auto& [family, dtype] : {std::pair{"qwen2", "bf16"}, {"mistral", "f16"}, {"llama", "f32"}}) {
        Copy copy(family);
        copy.change_config({{"torch_dtype", nullptr}, {"dtype", nullptr}});
        EXPECT_EQ(read_model_shape(copy.path()).dtype, dtype);
    }
}

TEST(ModelFolder, PicklesAndEmptyFoldersAreRefusedWithTheFix) {
    Copy pickle("llama");
    fs::rename(pickle.path() / "model.safetensors", pickle.path() / "pytorch_model.bin");
    expect_error([&] { pickle.load(); }, {"pytorch_model.bin", "pickle", "safe_serialization=True"});
    fs::remove(pickle.path() / "pytorch_model.bin");
    expect_error([&] { pickle.load(); }, {"holds neither model.safetensors nor model.safetensors.index.json"});
    fs::remove(pickle.path() / "config.json");
    expect_error([&] { pickle.load(); }, {"config.json", "No such file"});
    expect_error([&] { read_model_shape(pickle.path() / "nowhere"); }, {"no model folder at"});
}

TEST(ModelFolder, ParametersMustBeExactlyTheModels) {
    const ModelShape shape = read_model_shape(goldens / "llama");
    OwnedTensors params = params_of(shape, Dtype::f32);
    params.all()[1].shape[0] = 15;
    expect_error([&] { load_weights(goldens / "llama", shape, params.all()); },
                 {"parameter \"layers.0.attn_norm\" is [15], but the model's is [16]"});
    params.all().pop_back();
    params.all()[1].shape[0] = 16;
    expect_error([&] { load_weights(goldens / "llama", shape, params.all()); },
                 {"parameter \"head\" [24, 16] of the model is not given"});
    OwnedTensors more = params_of(shape, Dtype::f32);
    more.add("bogus", Dtype::f32, {1});
    expect_error([&] { load_weights(goldens / "llama", shape, more.all()); }, {"\"bogus\" is not one of this model"});
}

TEST(ModelFolder, SavingCopiesTokenizerFilesByteForByte) {
    const TempFolder folder;
    const ModelShape shape = read_model_shape(goldens / "smollm2");
    const OwnedTensors params = params_of(shape, Dtype::bf16);
    fs::create_directory(folder / "tok");
    const std::pair<const char*, std::string> files[] = {{"tokenizer.json", "{\"x\": 1}\r\n"},
                                                         {"tokenizer_config.json", "{ }"},
                                                         {"special_tokens_map.json", std::string("a\0b", 3)},
                                                         {"generation_config.json", "{\"top_k\": 5}"}};
    for (const auto& [name, text] : files) write_bytes(folder / concat("tok/", name), text);
    save_model_folder(folder / "a", shape, params.all(), {.tokenizer_from = folder / "tok"});
    for (const auto& [name, text] : files) EXPECT_EQ(read_file(folder / concat("a/", name)), text) << name;

    // A lone tokenizer.json is enough; the files other tools look for are made.
    save_model_folder(folder / "b", shape, params.all(), {.tokenizer_from = folder / "tok/tokenizer.json"});
    EXPECT_EQ(read_file(folder / "b/tokenizer.json"), files[0].second);
    EXPECT_EQ(Json::parse(read_file(folder / "b/tokenizer_config.json"))["tokenizer_class"], "PreTrainedTokenizerFast");
    EXPECT_EQ(Json::parse(read_file(folder / "b/generation_config.json"))["eos_token_id"], 2);
    fs::create_directory(folder / "empty");
    expect_error([&] { save_model_folder(folder / "c", shape, params.all(), {.tokenizer_from = folder / "empty"}); },
                 {"no tokenizer file in"});
    EXPECT_FALSE(fs::exists(folder / "c"));
}

TEST(ModelFolder, AFailedSaveLeavesNothingBehind) {
    const TempFolder folder;
    const ModelShape shape = read_model_shape(goldens / "smollm2");
    const OwnedTensors params = params_of(shape, Dtype::bf16);
    fs::create_directory(folder / "full");
    write_bytes(folder / "full/x", "x");
    expect_error([&] { save_model_folder(folder / "full", shape, params.all(), {}); },
                 {"exists and is not an empty folder"});
    expect_error([&] { save_model_folder(folder / "full/x/y", shape, params.all(), {}); }, {"full/x"});
    fs::create_directory(folder / "empty");
    save_model_folder(folder / "empty/", shape, params.all(), {});
    EXPECT_TRUE(fs::exists(folder / "empty/model.safetensors"));
    std::size_t entries = 0;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
        ++entries;
        EXPECT_NE(entry.path().filename().string()[0], '.') << entry.path();
    }
    EXPECT_EQ(entries, 2u);
}

}  // namespace
}  // namespace keel::test
