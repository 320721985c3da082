// Checkpoints: what is saved is what loads; what is damaged is named and skipped; what is old goes, never the last good
// one.
#include "ckpt/checkpoint.h"

#include <sys/wait.h>

#include <set>

#include "ckpt/safetensors.h"
#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

OwnedTensors state(std::uint64_t seed = 1) {
    OwnedTensors t;
    t.add("embed", Dtype::bf16, {50, 16}, seed);
    t.add("layers.0.qkv", Dtype::bf16, {33, 16}, seed);
    t.add("final_norm", Dtype::bf16, {16}, seed);
    for (const char* kind : {"m", "v", "master"}) {
        t.add(concat("embed.", kind), Dtype::f32, {50, 16}, seed);
        t.add(concat("layers.0.qkv.", kind), Dtype::f32, {33, 16}, seed);
        t.add(concat("final_norm.", kind), Dtype::f32, {16}, seed);
    }
    return t;
}

std::vector<ExtraFile> tokenizer() { return {{"tokenizer.json", std::string("{\"a\0b\"}", 7)}}; }

fs::path save(const fs::path& root, std::int64_t step, const Retention& retention = {}) {
    return save_checkpoint(root, step, concat("{\"step\":", step, "}"), state(static_cast<std::uint64_t>(step)).all(),
                           tokenizer(), retention);
}

std::set<std::string> entries(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
    return names;
}

TEST(Checkpoint, LoadsBackEveryBit) {
    const TempFolder root;
    const OwnedTensors saved = state(7);
    const fs::path path = save_checkpoint(root.path(), 1234, "{\"samples\": 5}", saved.all(), tokenizer());
    EXPECT_EQ(path.filename(), "step-00001234");
    EXPECT_EQ(entries(path), (std::set<std::string>{"weights.safetensors", "optimizer.safetensors", "state.json",
                                                    "tokenizer.json", "manifest.json"}));
    EXPECT_EQ(entries(root.path()).size(), 1u);
    EXPECT_TRUE(is_checkpoint(path));
    EXPECT_FALSE(is_checkpoint(root.path()));
    const CheckpointInfo info = verify_checkpoint(path);
    EXPECT_EQ(info.step, 1234);
    EXPECT_EQ(info.state, "{\"samples\": 5}");
    EXPECT_EQ(read_checkpoint_file(path, "tokenizer.json"), tokenizer()[0].bytes);
    EXPECT_EQ(read_checkpoint_file(path, "other.json"), std::nullopt);
    const OwnedTensors loaded = saved.blank();
    load_checkpoint(path, loaded.all());
    EXPECT_EQ(loaded.memory(), saved.memory());
}

TEST(Checkpoint, WeightsLoadAloneAndConvert) {
    const TempFolder root;
    const fs::path path = save(root.path(), 3);
    const OwnedTensors saved = state(3);
    OwnedTensors wide;  // the weights only, as float32
    for (const NamedTensor& t : saved.all())
        if (t.dtype == Dtype::bf16) wide.add(t.name, Dtype::f32, t.shape);
    write_bytes(path / "optimizer.safetensors", std::string(fs::file_size(path / "optimizer.safetensors"), 'x'));
    load_checkpoint(path, wide.all());  // never looks into the optimizer's file
    for (std::size_t i = 0; i < wide.all().size(); ++i) {
        const NamedTensor &from = saved.all()[i], &to = wide.all()[i];
        std::vector<std::byte> want(static_cast<std::size_t>(size_bytes(to)));
        convert(StoredDtype::BF16, from.data, Dtype::f32, want.data(), element_count(to.shape));
        EXPECT_EQ(std::memcmp(want.data(), to.data, want.size()), 0) << to.name;
    }
}

TEST(Checkpoint, TensorsThatDoNotMatchAreListed) {
    const TempFolder root;
    const fs::path path = save(root.path(), 3);
    OwnedTensors other;
    other.add("embed", Dtype::bf16, {51, 16});
    other.add("layers.1.qkv", Dtype::bf16, {33, 16});
    other.add("final_norm", Dtype::bf16, {16});
    expect_error([&] { load_checkpoint(path, other.all()); },
                 {"weights.safetensors does not hold the tensors of this run",
                  "misshapen  embed is [50, 16], the run's is [51, 16]", "unexpected layers.0.qkv [33, 16]",
                  "missing    layers.1.qkv [33, 16]"});
    const fs::path bare = save_checkpoint(root.path(), 4, "{}", std::span(state().all()).first(3));
    expect_error([&] { load_checkpoint(bare, state().all()); }, {"has no optimizer.safetensors"});
}

TEST(Checkpoint, AnyDamageIsNamedAndTheOlderOneTaken) {
    const auto flip = [](const fs::path& file, std::int64_t at) {
        std::string bytes = read_file(file);
        bytes[static_cast<std::size_t>(at < 0 ? static_cast<std::int64_t>(bytes.size()) + at : at)] ^= 0x20;
        write_bytes(file, bytes);
    };
    const std::pair<const char*, std::function<void(const fs::path&)>> damages[] = {
        {"first byte", [&](const fs::path& f) { flip(f, 0); }},
        {"a byte in the middle", [&](const fs::path& f) { flip(f, static_cast<std::int64_t>(fs::file_size(f) / 2)); }},
        {"last byte", [&](const fs::path& f) { flip(f, -1); }},
        {"cut by one", [](const fs::path& f) { fs::resize_file(f, fs::file_size(f) - 1); }},
        {"emptied", [](const fs::path& f) { fs::resize_file(f, 0); }},
        {"one byte more", [](const fs::path& f) { write_bytes(f, read_file(f) + "\n"); }},
        {"removed", [](const fs::path& f) { fs::remove(f); }},
        {"replaced by a folder", [](const fs::path& f) { fs::remove(f), fs::create_directory(f); }}};
    const TempFolder clean;
    save(clean.path(), 10);
    save(clean.path(), 20);
    for (const char* file :
         {"weights.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json", "manifest.json"}) {
        for (const auto& [what, damage] : damages) {
            SCOPED_TRACE(concat(file, ": ", what));
            const TempFolder root;
            fs::copy(clean.path(), root.path(), fs::copy_options::recursive);
            const fs::path newest = root / "step-00000020";
            damage(newest / file);
            expect_error([&] { verify_checkpoint(newest); }, {file});
            std::string told;
            const auto found = find_newest_checkpoint(root.path(), [&](const std::string& text) { told += text; });
            ASSERT_TRUE(found);
            EXPECT_EQ(found->step, 10);
            EXPECT_NE(told.find("skipping " + newest.string()), std::string::npos) << told;
            EXPECT_NE(told.find(file), std::string::npos) << told;
        }
    }
}

TEST(Checkpoint, DamageSaysWhatWasExpectedAndFound) {
    const TempFolder root;
    const fs::path path = save(root.path(), 5);
    const fs::path weights = path / "weights.safetensors";
    const auto size = fs::file_size(weights);
    std::string bytes = read_file(weights);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(weights, bytes);
    const auto listed = open_checkpoint(path).files;
    const auto entry =
        std::find_if(listed.begin(), listed.end(), [](const auto& f) { return f.name == "weights.safetensors"; });
    const OwnedTensors tensors = state().blank();
    expect_error([&] { load_checkpoint(path, tensors.all()); },
                 {weights.string(), "is damaged: XXH3-128 should be " + entry->hash + ", found "});
    expect_error([&] { verify_checkpoint(path); }, {weights.string(), "XXH3-128 should be " + entry->hash});
    fs::resize_file(weights, size - 3);
    expect_error([&] { open_checkpoint(path); },
                 {weights.string(), concat("should have ", size, " bytes, found ", size - 3)});
    fs::remove(path / "manifest.json");
    expect_error([&] { open_checkpoint(path); }, {"not a complete checkpoint", "manifest.json"});
}

TEST(Checkpoint, NoCheckpointIsAValueAndNotAnError) {
    const TempFolder root;
    const auto warn = [](const std::string& text) { ADD_FAILURE() << text; };
    EXPECT_FALSE(find_newest_checkpoint(root / "nowhere", warn));
    for (const char* other : {"step-12", "step-", "step-0000000x", "step--0000012", ".tmp-step-00000012-1", "notes"})
        fs::create_directory(root / other);
    write_bytes(root / "step-00000013", "a file");
    EXPECT_FALSE(find_newest_checkpoint(root.path(), warn));
}

// Whoever starts again further back must not find the end of the earlier history at the next look.
TEST(Checkpoint, LaterOnesAreSetAsideWhole) {
    const TempFolder root;
    for (const std::int64_t step : {10, 20, 30}) save(root.path(), step, {.keep_last = 0});
    EXPECT_EQ(set_aside_checkpoints(root.path(), 30), std::nullopt);
    EXPECT_EQ(set_aside_checkpoints(root.path(), 10), root / "set-aside-1");
    EXPECT_EQ(find_newest_checkpoint(root.path(), {})->step, 10);
    for (const std::int64_t step : {20, 30})
        EXPECT_EQ(verify_checkpoint(root / concat("set-aside-1/step-000000", step)).step, step);
    EXPECT_EQ(set_aside_checkpoints(root.path(), -1), root / "set-aside-2");
    EXPECT_FALSE(find_newest_checkpoint(root.path(), {}));
}

TEST(Checkpoint, StepsAreOrderedByNumber) {
    const TempFolder root;
    save(root.path(), 99999999, {.keep_last = 0});
    save(root.path(), 100000000, {.keep_last = 0});
    EXPECT_EQ(find_newest_checkpoint(root.path(), {})->step, 100000000);
}

TEST(Checkpoint, SavingAStepAgainReplacesIt) {
    const TempFolder root;
    save_checkpoint(root.path(), 5, "{\"first\":1}", state(1).all(), tokenizer());
    const fs::path path = save_checkpoint(root.path(), 5, "{\"second\":1}", state(2).all());
    EXPECT_EQ(verify_checkpoint(path).state, "{\"second\":1}");
    EXPECT_EQ(entries(root.path()), (std::set<std::string>{"step-00000005"}));
    EXPECT_FALSE(entries(path).contains("tokenizer.json"));
}

TEST(Checkpoint, RetentionKeepsTheNewestAndTheMultiples) {
    const TempFolder root;
    const Retention retention{.keep_last = 2, .keep_every = 30};
    for (std::int64_t step = 10; step <= 80; step += 10) save(root.path(), step, retention);
    EXPECT_EQ(entries(root.path()),
              (std::set<std::string>{"step-00000030", "step-00000060", "step-00000070", "step-00000080"}));
    const TempFolder all;
    for (std::int64_t step = 1; step <= 5; ++step) save(all.path(), step, {.keep_last = 0});
    EXPECT_EQ(entries(all.path()).size(), 5u);
}

TEST(Checkpoint, RetentionNeverDeletesTheOneJustSavedOrCountsDamagedOnes) {
    const TempFolder root;
    save(root.path(), 100, {.keep_last = 0});
    save(root.path(), 200, {.keep_last = 0});
    save(root.path(), 300, {.keep_last = 0});
    fs::remove(root / "step-00000300/manifest.json");
    fs::resize_file(root / "step-00000200/weights.safetensors", 9);
    // A run that went back to 100 saves 110: older by number than two damaged ones.
    save(root.path(), 110, {.keep_last = 1});
    EXPECT_EQ(find_newest_checkpoint(root.path(), {})->step, 110);
    EXPECT_FALSE(fs::exists(root / "step-00000100"));
    EXPECT_TRUE(fs::exists(root / "step-00000200"));  // damaged: left for a person to look at
    EXPECT_TRUE(fs::exists(root / "step-00000300"));
}

TEST(Checkpoint, RetentionLeavesSymbolicLinksAlone) {
    const TempFolder root, elsewhere;
    const fs::path precious = save(elsewhere.path(), 1);
    fs::create_directory_symlink(precious, root / "step-00000001");
    for (std::int64_t step = 2; step <= 4; ++step) save(root.path(), step, {.keep_last = 1});
    EXPECT_NO_THROW(verify_checkpoint(precious));
    EXPECT_TRUE(fs::exists(root / "step-00000001"));
}

TEST(Checkpoint, PreparingRemovesWhatDeadProcessesLeft) {
    const TempFolder root;
    const pid_t dead = ::fork();
    if (dead == 0) ::_exit(0);
    ::waitpid(dead, nullptr, 0);
    const auto temporary = [&](pid_t pid) { return root / concat(".tmp-step-00000001-", pid); };
    for (const pid_t pid : {dead, ::getpid(), ::getppid()}) fs::create_directory(temporary(pid));
    save(root.path(), 2);
    prepare_checkpoint_root(root.path());
    EXPECT_FALSE(fs::exists(temporary(dead)));
    EXPECT_FALSE(fs::exists(temporary(::getpid())));
    EXPECT_TRUE(fs::exists(temporary(::getppid())));  // alive: it may be saving
    EXPECT_NO_THROW(verify_checkpoint(root / "step-00000002"));
    EXPECT_EQ(entries(root.path()).size(), 2u);
}

TEST(Checkpoint, PlacesThatCannotHoldOneAreRefusedAtOnce) {
    const TempFolder root;
    write_bytes(root / "file", "x");
    expect_error([&] { prepare_checkpoint_root(root / "file/sub"); }, {"cannot make folder", "file/sub"});
    expect_error([&] { prepare_checkpoint_root("/proc/keel"); }, {"/proc/keel"});
    expect_error([&] { save(root / "file", 1); }, {"file"});
    expect_error(
        [&] {
            save_checkpoint(root.path(), 1, "{}", state().all(), {{"../x", ""}});
        },
        {"\"../x\"", "bare name"});
    expect_error(
        [&] {
            save_checkpoint(root.path(), 1, "{}", state().all(), {{"state.json", ""}});
        },
        {"\"state.json\""});
    expect_error([&] { save_checkpoint(root.path(), -1, "{}", state().all()); }, {"step -1"});
    expect_error([&] { save_checkpoint(root.path(), 1, "[]", state().all()); }, {"expected a JSON object"});
    EXPECT_EQ(entries(root.path()), (std::set<std::string>{"file"}));
}

TEST(Checkpoint, FilesAreSafetensorsThatOtherToolsRead) {
    const TempFolder root;
    const fs::path path = save(root.path(), 1);
    const SafetensorsFile weights(path / "weights.safetensors");
    EXPECT_EQ(weights.find("layers.0.qkv")->dtype, StoredDtype::BF16);
    EXPECT_EQ(weights.header().metadata.at("format"), "pt");
    EXPECT_EQ(SafetensorsFile(path / "optimizer.safetensors").tensors().size(), 9u);
}

}  // namespace
}  // namespace keel::test
