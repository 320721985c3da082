// Checkpoints between layouts: whoever saved, whoever loads, every element comes back where it belongs.
#include <map>
#include <mutex>

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_tensors.h"
#include "ckpt/safetensors.h"
#include "comm/threads.h"
#include "tests/ckpt/layouts.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

OwnedTensors model(std::uint64_t seed = 1) {
    OwnedTensors t;
    for (const auto& [name, shape] :
         std::vector<std::pair<std::string, std::vector<std::int64_t>>>{{"embed", {50, 16}},
                                                                        {"layers.0.qkv", {33, 16}},
                                                                        {"layers.0.norm", {16}},
                                                                        {"layers.0.down", {16, 40}},
                                                                        {"head", {50, 16}}}) {
        t.add(name, Dtype::bf16, shape, seed);
        for (const char* kind : {".m", ".v", ".master"}) t.add(name + kind, Dtype::f32, shape, seed);
    }
    return t;
}

fs::path save(const fs::path& root, const CutLayout& layout, const OwnedTensors& tensors, std::int64_t step = 1) {
    std::vector<fs::path> paths(static_cast<std::size_t>(layout.ranks()));
    run_threads(layout.ranks(), {}, [&](World& w) {
        const auto world = w.everyone();
        const RankMemory memory(layout, w.rank(), tensors.all(), true);
        paths[static_cast<std::size_t>(w.rank())] = save_checkpoint(*world, root, step, "{}", memory.pieces());
    });
    for (const fs::path& path : paths) EXPECT_EQ(path, paths[0]);
    return paths[0];
}

void expect_loads(const fs::path& path, const CutLayout& layout, const OwnedTensors& tensors) {
    run_threads(layout.ranks(), {}, [&](World& w) {
        const auto world = w.everyone();
        const RankMemory memory(layout, w.rank(), tensors.all(), false);
        load_checkpoint(*world, path, memory.pieces());
        EXPECT_TRUE(memory.equals(tensors.all())) << "rank " << w.rank();
    });
}

TEST(CheckpointLayout, AnyLayoutLoadsWhatAnyOtherSaved) {
    const OwnedTensors tensors = model();
    for (const CutLayout& from : cut_layouts()) {
        const TempFolder root;
        const fs::path path = save(root.path(), from, tensors);
        for (const CutLayout& to : cut_layouts()) {
            SCOPED_TRACE(from.name + " → " + to.name);
            expect_loads(path, to, tensors);
        }
    }
}

TEST(CheckpointLayout, OneRankWritesWholeTensorsAndNothingElse) {
    const TempFolder root;
    const OwnedTensors tensors = model();
    const fs::path path = save(root.path(), cut_layouts()[0], tensors);
    const SafetensorsFile weights(path / "weights.safetensors");
    EXPECT_EQ(weights.tensors().size(), 5u);
    EXPECT_EQ(weights.find("embed")->shape, (std::vector<std::int64_t>{50, 16}));
    EXPECT_EQ(weights.header().metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
    EXPECT_TRUE(fs::exists(path / "optimizer.safetensors"));
}

TEST(CheckpointLayout, EachRankWritesWhatItOwnsAndPlacesItInTheMetadata) {
    const TempFolder root;
    const OwnedTensors tensors = model();
    const fs::path path = save(root.path(), {"tp2", 1, 2, 1}, tensors);
    EXPECT_FALSE(fs::exists(path / "weights.safetensors"));
    const SafetensorsFile second(path / "weights-rank-00001-of-00002.safetensors");
    const StoredTensor* embed = second.find("embed@0,8");
    ASSERT_NE(embed, nullptr);
    EXPECT_EQ(embed->shape, (std::vector<std::int64_t>{50, 8}));
    EXPECT_NE(second.header()
                  .metadata.at("keel.pieces")
                  .find(R"("embed@0,8":{"col":8,"row":0,"shape":[50,16],"tensor":"embed"})"),
              std::string::npos);
    std::int64_t bytes = 0, want = 0;
    for (const auto& entry : fs::directory_iterator(path))
        if (entry.path().extension() == ".safetensors") {
            const SafetensorsFile file(entry.path());
            for (const StoredTensor& t : file.tensors()) bytes += t.size_bytes();
        }
    for (const NamedTensor& t : tensors.all()) want += size_bytes(t);
    EXPECT_EQ(bytes, want);  // once
}

TEST(CheckpointLayout, WholeTensorsOfAStageKeepTheirNames) {
    const TempFolder root;
    const fs::path path = save(root.path(), {"pp4", 4, 1, 1}, model());
    const SafetensorsFile first(path / "weights-rank-00000-of-00004.safetensors");
    EXPECT_NE(first.find("embed"), nullptr);
    EXPECT_FALSE(first.header().metadata.contains("keel.pieces"));
}

TEST(CheckpointLayout, RanksThatOwnNothingWriteNothing) {
    const TempFolder root;
    OwnedTensors tensors;
    tensors.add("w", Dtype::f32, {4, 4});
    const CutLayout layout{"pp3", 3, 1, 1};
    const fs::path path = save(root.path(), layout, tensors);
    EXPECT_FALSE(fs::exists(path / "weights-rank-00001-of-00003.safetensors"));
    expect_loads(path, layout, tensors);
}

TEST(CheckpointLayout, WeightsLoadAloneAndConvert) {
    const TempFolder root;
    const OwnedTensors tensors = model();
    const fs::path path = save(root.path(), {"pp2 tp2 zero2", 2, 2, 2}, tensors);
    OwnedTensors wide;
    for (const NamedTensor& t : tensors.all())
        if (t.dtype == Dtype::bf16) wide.add(t.name, Dtype::f32, t.shape);
    std::size_t i = 0;
    load_checkpoint(path, wide.all());
    for (const NamedTensor& t : tensors.all()) {
        if (t.dtype != Dtype::bf16) continue;
        std::vector<std::byte> want(wide.memory()[i].size());
        convert(StoredDtype::BF16, t.data, Dtype::f32, want.data(), element_count(t.shape));
        EXPECT_EQ(want, wide.memory()[i++]) << t.name;
    }
}

TEST(CheckpointLayout, FlatRangesAreReadOutOfAnyPieces) {
    const TempFolder root;
    const OwnedTensors tensors = model();
    for (const CutLayout& layout : cut_layouts()) {
        const CheckpointTensors stored(open_checkpoint(save(root.path(), layout, tensors, layout.ranks())));
        const NamedTensor& t = tensors.all()[0];
        for (const auto& [first, count] :
             {std::pair<std::int64_t, std::int64_t>{0, 800}, {3, 5}, {15, 2}, {1, 799}, {16, 32}, {7, 0}}) {
            std::vector<std::byte> got(static_cast<std::size_t>(count * 2));
            stored.read("embed", first, count, Dtype::bf16, got.data());
            EXPECT_TRUE(std::equal(got.begin(), got.end(), t.data + first * 2)) << layout.name << " " << first;
        }
    }
}

TEST(CheckpointLayout, SavedByFourIsLoadedByTwo) {
    const TempFolder root;
    const OwnedTensors tensors = model(4);
    save(root.path(), {"tp2 zero2", 1, 2, 2}, tensors, 40);
    run_threads(2, {}, [&](World& w) {
        const auto world = w.everyone();
        const auto newest = find_newest_checkpoint(*world, root.path(), {});
        ASSERT_TRUE(newest);
        EXPECT_EQ(newest->step, 40);
        const RankMemory memory({"zero2", 1, 1, 2}, w.rank(), tensors.all(), false);
        load_checkpoint(*world, newest->path, memory.pieces());
        EXPECT_TRUE(memory.equals(tensors.all()));
    });
}

}  // namespace
}  // namespace keel::test
