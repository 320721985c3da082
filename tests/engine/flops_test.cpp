// FLOPs from shapes, against numbers worked out by hand and by an independent script.
#include "engine/observe/flops.h"

#include <gtest/gtest.h>

#include "engine/config_check.h"
#include "engine/model_shape.h"
#include "engine/observe/datasheet.h"
#include "engine/observe/mfu.h"
#include "kernels/base/error.h"

using namespace keel;

namespace {

ModelSection shape(std::int64_t hidden, std::int64_t layers, std::int64_t ffn, std::int64_t vocab, std::int64_t heads,
                   std::int64_t kv_heads, std::int64_t head_dim) {
    ModelSection m;
    m.hidden = hidden;
    m.layers = layers;
    m.ffn = ffn;
    m.vocab = vocab;
    m.heads = heads;
    m.kv_heads = kv_heads;
    m.head_dim = head_dim;
    resolve_model(m);
    return m;
}

const ModelSection llama_7b = shape(4096, 32, 11008, 32000, 32, 32, 128);

}  // namespace

TEST(Flops, Llama7bAt4096) {
    const Flops flops(llama_7b);
    EXPECT_EQ(flops.per_token, 39'642'464'256.0);
    EXPECT_EQ(flops.per_square, 786'432.0);
    EXPECT_EQ(flops.per_square * 4096, 3'221'225'472.0);
    EXPECT_EQ(flops.at_length(4096), 42'863'689'728.0);
    EXPECT_EQ(flops.of(4096, 4096 * 4096), 175'569'673'125'888.0);
    EXPECT_NEAR(flops.per_square * 4096 / flops.at_length(4096), 0.07515, 5e-6);
}

TEST(Flops, AreSixPerParameterThatMultipliesPlusAttention) {
    const ParameterCount count = parameter_count(llama_7b);
    const double without_input = static_cast<double>(count.total() - count.embedding - count.norms);
    EXPECT_EQ(without_input, 6'607'077'376.0);
    EXPECT_EQ(Flops(llama_7b).per_token, 6 * without_input);
    EXPECT_NEAR(Flops(llama_7b).at_length(4096) / (6 * without_input), 1.081257, 5e-7);
    EXPECT_NEAR(Flops(llama_7b).at_length(4096) / (6 * static_cast<double>(count.total())), 1.0602, 5e-5);
}

TEST(Flops, PackedDocumentsCountTheSumOfSquares) {
    const std::int64_t squares = 2048 * 2048 + 1024 * 1024 + 1024 * 1024;
    EXPECT_EQ(squares, 6'291'456);
    EXPECT_DOUBLE_EQ(static_cast<double>(squares) / (4096.0 * 4096.0), 0.375);
    EXPECT_DOUBLE_EQ(Flops(llama_7b).of(4096, squares) / 4096, 40'850'423'808.0);
    // A batch of four such rows: 16384 tokens, 25 165 824 squares, counted once.
    EXPECT_EQ(Flops(llama_7b).of({.samples = 4, .steps = 1, .skipped = 0, .tokens = 16384, .tokens_squared = 4 * squares}),
              4 * Flops(llama_7b).of(4096, squares));
    EXPECT_EQ(4 * squares, 25'165'824);
}

TEST(Flops, Llama3At8192) {
    const Flops flops(shape(4096, 32, 14336, 128256, 32, 8, 128));
    EXPECT_EQ(flops.per_token, 45'027'950'592.0);
    EXPECT_EQ(flops.per_square, 786'432.0);
    EXPECT_EQ(flops.at_length(8192), 51'470'401'536.0);
    EXPECT_NEAR(flops.per_square * 8192 / flops.at_length(8192), 0.12517, 5e-6);
    // 10 000 tokens/s on a 989.5 TFLOP/s device
    EXPECT_NEAR(10'000 * flops.at_length(8192) / 989.5e12, 0.520, 5e-4);
}

TEST(Flops, TinyShape) {
    const Flops flops(shape(128, 2, 512, 1024, 8, 2, 16));
    EXPECT_EQ(flops.per_token, 3'637'248.0);
    EXPECT_EQ(flops.per_square, 1'536.0);
    EXPECT_EQ(flops.of(4 * 64, 4 * 64 * 64), 956'301'312.0);
}

TEST(Flops, ThroughputOfACluster) {
    // 512 samples of 4096 tokens in 10.0 s on 64 devices
    const double total = Flops(llama_7b).of(512 * 4096, 512LL * 4096 * 4096);
    EXPECT_NEAR(total / (10.0 * 1e12 * 64), 140.46, 5e-3);
}

TEST(Flops, TyingTheHeadSavesParametersNotWork) {
    ModelSection tied = llama_7b;
    tied.tied = true;
    EXPECT_EQ(Flops(tied).per_token, Flops(llama_7b).per_token);
}

TEST(Flops, SharesOfAllRanksAreTheWhole) {
    // Two stages of 14 and 18 blocks, the second with the head; four ranks share each.
    const Flops whole(llama_7b), first = Flops::share(llama_7b, 14, false, 4), second = Flops::share(llama_7b, 18, true, 4);
    EXPECT_EQ(4 * (first.per_token + second.per_token), whole.per_token);
    EXPECT_EQ(4 * (first.per_square + second.per_square), whole.per_square);
    EXPECT_EQ(first.per_token, 14 * 1'214'251'008.0 / 4);
}

// 512 samples of 4096 tokens in 10.0 s on 64 devices: 140.46 TFLOP/s each, of 989 dense.
TEST(Mfu, NamesItsFormulaAndItsPeaks) {
    Config c;
    c.model = llama_7b;
    c.observe.device_peak = "h100";
    const double flops = Flops(llama_7b).of(512 * 4096, 512LL * 4096 * 4096);
    EXPECT_EQ(mfu_text(c, flops, 10.0, 64, 64 * 700e12, device_peak(c)),
              "MFU = FLOPs / seconds / peak, FLOPs = 39642464256 per token + 786432 per squared length of a document: "
              "8.989e+16 in 10.0 s of training, 20.1 % of the 4.48e+04 TFLOP/s that matrix products reach here, "
              "14.2 % of the datasheet's 6.33e+04 TFLOP/s (64 ranks)");
    EXPECT_EQ(mfu_text(c, 5e12, 10.0, 1, 0, 0),
              "MFU = FLOPs / seconds / peak, FLOPs = 39642464256 per token + 786432 per squared length of a document: "
              "5e+12 in 10.0 s of training");
    EXPECT_EQ(mfu_text(c, 5e12, 0, 1, 1e12, 0), "");
}

TEST(Mfu, APeakIsADeviceOrANumber) {
    Config c;
    const auto peak = [&](const std::string& text) {
        c.observe.device_peak = text;
        return device_peak(c);
    };
    const auto message = [&](const std::string& text) -> std::string {
        try {
            return concat("no error: ", peak(text));
        } catch (const Error& e) {
            return e.what();
        }
    };
    EXPECT_EQ(peak("h200"), 989e12);
    EXPECT_EQ(peak("a100"), 312e12);
    EXPECT_EQ(peak("2.5"), 2.5e12);
    EXPECT_EQ(peak(""), 0);
    EXPECT_EQ(message("h300"), "--observe.device_peak is \"h300\"; it must be a100, h100, h200, or a number of TFLOP/s greater than 0");
    for (const char* wrong : {"0", "-3", "nan", "inf", "12x"}) EXPECT_TRUE(message(wrong).starts_with("--observe.device_peak is")) << wrong;
    c.model.dtype = "f32";
    EXPECT_EQ(message("h100"), "--observe.device_peak h100 is its peak in bf16, but --model.dtype is f32; give the number of TFLOP/s instead");
    EXPECT_EQ(peak("67"), 67e12);
}

TEST(Datasheet, IsFoundByTheNameThatADriverGives) {
    for (const auto& [name, tflops] :
         {std::pair{"NVIDIA A100-SXM4-80GB", 312.0}, {"NVIDIA H100 80GB HBM3", 989.0}, {"NVIDIA H100 PCIe", 756.5}, {"NVIDIA H100 NVL", 835.5},
          {"NVIDIA H200", 989.0}, {"NVIDIA GH200 480GB", 989.0}, {"NVIDIA B200", 2250.0}, {"NVIDIA GB200", 2500.0}, {"NVIDIA L40S", 362.0},
          {"NVIDIA GeForce RTX 3090", 0.0}, {"cudasim", 0.0}})
        EXPECT_EQ(datasheet_tflops(name), tflops) << name;
}
