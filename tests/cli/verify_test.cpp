// `keel verify`, and what `convert` and `inspect` make of checkpoints that several ranks wrote.
#include <algorithm>

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_tensors.h"
#include "ckpt/local_checkpoints.h"
#include "comm/threads.h"
#include "tests/ckpt/layouts.h"
#include "tests/cli/keel_command.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

const fs::path golden = fs::path(KEEL_TEST_DIR) / "golden/folders/llama";

// A checkpoint of a golden model, written by one rank, and its tensors in memory.
struct Golden {
    TempFolder root;
    fs::path one;
    OwnedTensors tensors;
    CheckpointInfo info;

    Golden() : one(root / "one/step-00000000") {
        const Outcome made = run_keel_words({"convert", golden, root / "one"});
        EXPECT_EQ(made.code, 0) << made.err;
        info = open_checkpoint(one);
        const CheckpointTensors stored(info);
        for (const auto& [name, t] : stored.tensors())
            tensors.add(name, t.dtype == StoredDtype::F32 ? Dtype::f32 : Dtype::bf16, t.shape);
        load_checkpoint(one, tensors.all());
    }
    // The same, as the ranks of `layout` write it, with optimizer state if asked.
    fs::path by(const CutLayout& layout, bool optimizer = false) {
        const fs::path to = root / layout.name;
        OwnedTensors state;
        if (optimizer)
            for (const NamedTensor& t : tensors.all())
                for (const char* kind : {".m", ".v", ".master"})
                    if (t.dtype == Dtype::bf16 || kind != std::string(".master"))
                        state.add(t.name + kind, Dtype::f32, t.shape);
        std::vector<NamedTensor> all = tensors.all();
        all.insert(all.end(), state.all().begin(), state.all().end());
        std::vector<ExtraFile> extra;
        for (const CheckpointFile& f : info.files)
            if (f.name != "state.json" && f.name != "weights.safetensors")
                extra.push_back({f.name, *read_checkpoint_file(one, f.name)});
        run_threads(layout.ranks(), {}, [&](World& w) {
            const RankMemory memory(layout, w.rank(), all, true);
            save_checkpoint(*w.everyone(), to, 0, info.state, memory.pieces(), extra);
        });
        return to / "step-00000000";
    }
};

TEST(Convert, OfACheckpointOfEightRanksGivesTheBytesOfOne) {
    Golden g;
    EXPECT_EQ(run_keel_words({"convert", g.one, g.root / "from-one"}).code, 0);
    for (const CutLayout& layout : {CutLayout{"mix", 2, 2, 2}, CutLayout{"zero8", 1, 1, 8}}) {
        const fs::path to = g.root / ("from-" + layout.name);
        const Outcome made = run_keel_words({"convert", g.by(layout, true), to});
        ASSERT_EQ(made.code, 0) << made.err;
        int files = 0;
        for (const auto& entry : fs::directory_iterator(g.root / "from-one")) {
            ++files;
            EXPECT_EQ(read_file(entry.path()), read_file(to / entry.path().filename())) << entry.path().filename();
        }
        EXPECT_GT(files, 1);
        EXPECT_EQ(std::distance(fs::directory_iterator(to), fs::directory_iterator()), files);
    }
}

TEST(Inspect, CountsTheTensorsOfACheckpointAndNotTheirPieces) {
    Golden g;
    const auto counts = [](const fs::path& path) {
        const std::string out = run_keel_words({"inspect", "--json", path}).out;
        const auto at = out.find("\"tensors\"");
        return out.substr(at, out.find("\"config\"") - at);
    };
    EXPECT_EQ(counts(g.by({"mix", 2, 2, 2})), counts(g.one));
}

TEST(Verify, SaysGoodAndExitsWith0) {
    Golden g;
    g.by({"mix", 2, 2, 2}, true);
    const Outcome got = run_keel_words({"verify", g.one, g.root / "mix"});
    EXPECT_EQ(got.code, 0) << got.out << got.err;
    EXPECT_EQ(got.err, "");
    EXPECT_NE(got.out.find(concat(g.one.string(), ": good: step 0, ", g.tensors.all().size(), " tensors in ")),
              std::string::npos)
        << got.out;
    EXPECT_NE(got.out.find("mix/step-00000000: good: "), std::string::npos) << got.out;
}

TEST(Verify, SaysWhatIsBadAndExitsWith1) {
    Golden g;
    const fs::path mix = g.by({"mix", 2, 2, 2}), shard = mix / "weights-rank-00005-of-00008.safetensors";
    std::string bytes = read_file(shard);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(shard, bytes);
    const Outcome got = run_keel_words({"verify", g.one, mix});
    EXPECT_EQ(got.code, 1);
    EXPECT_NE(got.out.find(mix.string() + ": bad\n  weights-rank-00005-of-00008.safetensors is damaged: XXH3-128"),
              std::string::npos)
        << got.out;
    EXPECT_NE(got.err.find("bad checkpoints: 1 of 2"), std::string::npos) << got.err;
}

TEST(Verify, HoldsTheTensorsToTheConfigurationAndTheStateToTheManifest) {
    Golden g;
    std::vector<NamedTensor> fewer(g.tensors.all().begin() + 1, g.tensors.all().end());
    save_checkpoint(g.root / "fewer", 0, g.info.state, fewer);
    const Outcome missing = run_keel_words({"verify", g.root / "fewer"});
    EXPECT_EQ(missing.code, 1);
    EXPECT_NE(
        missing.out.find("not those of the model in its configuration:\n      missing    " + g.tensors.all()[0].name),
        std::string::npos)
        << missing.out;
    save_checkpoint(g.root / "later", 7, g.info.state, g.tensors.all());
    EXPECT_NE(run_keel_words({"verify", g.root / "later"}).out.find("state.json is of step 0, the manifest of step 7"),
              std::string::npos);
    save_checkpoint(g.root / "stateless", 0, "{}", g.tensors.all());
    EXPECT_NE(run_keel_words({"verify", g.root / "stateless"}).out.find("not the state of a keel checkpoint"),
              std::string::npos);
}

TEST(Verify, ChecksTheLocalPartsOfRanks) {
    Golden g;
    run_threads(2, {}, [&](World& w) {
        const auto world = w.everyone();
        LocalCheckpoints local(*world, g.root / "local", g.root / "run");
        const RankMemory memory({"zero2", 1, 1, 2}, w.rank(), g.tensors.all(), true);
        local.save(*world, 0, g.info.state, memory.pieces());
    });
    const Outcome got = run_keel_words({"verify", g.root / "local"});
    EXPECT_EQ(got.code, 0) << got.out << got.err;
    EXPECT_EQ(std::count(got.out.begin(), got.out.end(), '\n'), 4) << got.out;  // two parts and two copies
}

TEST(Verify, RefusesWhatHoldsNoCheckpoint) {
    const TempFolder folder;
    const Outcome got = run_keel_words({"verify", folder.path()});
    EXPECT_EQ(got.code, 1);
    EXPECT_NE(got.err.find("is no checkpoint and holds none"), std::string::npos) << got.err;
    EXPECT_NE(run_keel_words({"verify", folder / "absent"}).err.find("no such file or folder"), std::string::npos);
    EXPECT_EQ(run_keel_words({"verify"}).code, 2);
}

}  // namespace
}  // namespace keel::test
