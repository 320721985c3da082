// What `keel verify` finds: every problem of a checkpoint, not only the first, and no more than there are.
#include "ckpt/check.h"

#include <bit>
#include <cmath>
#include <limits>

#include "ckpt/manifest.h"
#include "comm/threads.h"
#include "tests/ckpt/layouts.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

OwnedTensors model() {
    OwnedTensors t;
    t.add("embed", Dtype::bf16, {50, 16});
    t.add("embed.m", Dtype::f32, {50, 16});
    return t;
}

fs::path save(const fs::path& root, const OwnedTensors& tensors, const CutLayout& layout = {"zero3", 1, 1, 3}) {
    run_threads(layout.ranks(), {}, [&](World& w) {
        const RankMemory memory(layout, w.rank(), tensors.all(), true);
        save_checkpoint(*w.everyone(), root, 5, "{\"a\":1}", memory.pieces(), {{"tokenizer.json", "{}"}});
    });
    return root / "step-00000005";
}

std::string problems(const fs::path& path) {
    std::string text;
    for (const std::string& problem : check_checkpoint(path).problems) text += problem + "\n";
    return text;
}

void damage(const fs::path& file) {
    std::string bytes = read_file(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(file, bytes);
}

TEST(CheckpointCheck, AGoodOneIsCountedWhole) {
    const TempFolder root;
    const CheckpointCheck check = check_checkpoint(save(root.path(), model()));
    EXPECT_TRUE(check.problems.empty()) << check.problems[0];
    EXPECT_EQ(check.step, 5);
    EXPECT_EQ(check.state, "{\"a\":1}");
    EXPECT_EQ(check.files, 8);  // two of each rank, state, tokenizer
    EXPECT_EQ(check.elements, 1600);
    EXPECT_EQ(check.not_finite, 0);
    ASSERT_EQ(check.tensors.size(), 2u);
    EXPECT_EQ(check.tensors[1].name, "embed.m");
    EXPECT_EQ(check.tensors[1].shape, (std::vector<std::int64_t>{50, 16}));
}

TEST(CheckpointCheck, EveryProblemIsTold) {
    const TempFolder root;
    const fs::path path = save(root.path(), model());
    damage(path / "weights-rank-00001-of-00003.safetensors");
    damage(path / "tokenizer.json");
    fs::copy(path / "optimizer-rank-00000-of-00003.safetensors", path / "optimizer-rank-00003-of-00004.safetensors");
    const std::string told = problems(path);
    EXPECT_NE(told.find("weights-rank-00001-of-00003.safetensors is damaged: XXH3-128"), std::string::npos) << told;
    EXPECT_NE(told.find("tokenizer.json is damaged: XXH3-128"), std::string::npos) << told;
    EXPECT_NE(told.find("optimizer-rank-00003-of-00004.safetensors is not listed in the manifest"), std::string::npos)
        << told;
    EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 3) << told;
}

TEST(CheckpointCheck, MissingAndCutFilesAreToldOnce) {
    const TempFolder root;
    const fs::path path = save(root.path(), model());
    fs::remove(path / "weights-rank-00000-of-00003.safetensors");
    fs::resize_file(path / "optimizer-rank-00002-of-00003.safetensors", 10);
    const std::string told = problems(path);
    EXPECT_NE(told.find("cannot open " + (path / "weights-rank-00000-of-00003.safetensors").string()),
              std::string::npos)
        << told;
    EXPECT_NE(told.find("optimizer-rank-00002-of-00003.safetensors is damaged: it should have"), std::string::npos)
        << told;
    EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 2) << told;
}

TEST(CheckpointCheck, HolesStateAndManifestAreLookedAt) {
    const TempFolder root;
    const fs::path path = save(root.path(), model());
    const CheckpointInfo info = open_checkpoint(path);
    auto files = info.files;
    std::erase_if(files, [](const auto& f) {
        return f.name == "weights-rank-00002-of-00003.safetensors" || f.name == "state.json";
    });
    write_bytes(path / "manifest.json", manifest_text(5, files));
    const std::string told = problems(path);
    EXPECT_NE(told.find("embed [50, 16]: rows 33…33, columns"), std::string::npos) << told;
    EXPECT_NE(told.find("the manifest lists no state.json"), std::string::npos) << told;
    damage(path / "manifest.json");
    EXPECT_NE(problems(path).find("manifest.json"), std::string::npos);
    fs::remove(path / "manifest.json");
    EXPECT_EQ(problems(path), "it has no manifest.json, which is written last: saving it was never finished\n");
}

TEST(CheckpointCheck, ValuesThatAreNotFiniteAreCountedByTensor) {
    const TempFolder root;
    OwnedTensors tensors = model();
    const float infinite = std::numeric_limits<float>::infinity();
    const bf16 nan(std::numeric_limits<float>::quiet_NaN());
    std::memcpy(tensors.all()[1].data + 799 * 4, &infinite, 4);
    std::memcpy(tensors.all()[1].data, &infinite, 4);
    std::memcpy(tensors.all()[0].data + 400 * 2, &nan, 2);
    const CheckpointCheck check = check_checkpoint(save(root.path(), tensors));
    EXPECT_EQ(check.not_finite, 3);
    ASSERT_EQ(check.problems.size(), 1u);
    EXPECT_EQ(check.problems[0], "3 values are not finite: 1 of embed, 2 of embed.m");
}

// Every bf16, f16 and 8-bit value against the conversion to float, which other tests hold to the formats.
TEST(CheckpointCheck, FiniteMeansTheSameAsAfterConversion) {
    for (const StoredDtype dtype : {StoredDtype::BF16, StoredDtype::F16, StoredDtype::F8_E4M3, StoredDtype::F8_E5M2}) {
        const int bytes = static_cast<int>(size_bits(dtype) / 8);
        for (std::uint32_t bits = 0; bits < 1u << (8 * bytes); ++bits) {
            float value = 0;
            convert(dtype, reinterpret_cast<const std::byte*>(&bits), Dtype::f32, reinterpret_cast<std::byte*>(&value),
                    1);
            ASSERT_EQ(count_not_finite(dtype, reinterpret_cast<const std::byte*>(&bits), 1),
                      std::isfinite(value) ? 0 : 1)
                << name(dtype) << " " << bits;
        }
    }
    const double values[] = {1e308, std::numeric_limits<double>::infinity(), -0.0,
                             std::numeric_limits<double>::quiet_NaN()};
    EXPECT_EQ(count_not_finite(StoredDtype::F64, reinterpret_cast<const std::byte*>(values), 4), 2);
    const std::uint32_t all_ones[] = {~0u, ~0u};
    EXPECT_EQ(count_not_finite(StoredDtype::I32, reinterpret_cast<const std::byte*>(all_ones), 2), 0);
}

}  // namespace
}  // namespace keel::test
