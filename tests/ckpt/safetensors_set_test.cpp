// Sharded sets: the index, its shards, and every disagreement between them.
#include <nlohmann/json.hpp>

#include "ckpt/safetensors.h"
#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

TensorSource bytes(const std::string& name, std::int64_t count) {
    return {name, StoredDtype::U8, {count}, [=](const ByteSink& out) {
                out(std::vector<std::byte>(static_cast<std::size_t>(count), static_cast<std::byte>(name[0])));
            }};
}

// a (8 bytes) in the first shard, b (6) in the second.
class Set {
public:
    Set() {
        write_safetensors_file(first(), {bytes("a", 8)});
        write_safetensors_file(second(), {bytes("b", 6)});
        write_index({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}, 14);
    }
    fs::path first() const { return folder_ / "model-00001-of-00002.safetensors"; }
    fs::path second() const { return folder_ / "model-00002-of-00002.safetensors"; }
    const fs::path& path() const { return folder_.path(); }
    void write_index(const Json& weight_map, const Json& total_size) const {
        write_bytes(folder_ / "model.safetensors.index.json",
                    Json{{"metadata", {{"total_size", total_size}, {"other", 1}}}, {"weight_map", weight_map}}.dump());
    }
    // Opens, and returns the warnings.
    std::string open() const {
        std::string told;
        const SafetensorsSet set(path(), [&](const std::string& text) { told += text + "\n"; });
        EXPECT_TRUE(set.find("a"));
        return told;
    }

private:
    TempFolder folder_;
};

TEST(SafetensorsSet, OpensShardsThroughTheIndex) {
    const Set set;
    EXPECT_EQ(set.open(), "");
    const SafetensorsSet opened(set.path(), {});
    EXPECT_EQ(opened.files().size(), 2u);
    EXPECT_EQ(opened.find("b")->file->path(), set.second());
    EXPECT_FALSE(opened.find("c"));
}

TEST(SafetensorsSet, PrefersTheIndexAndSaysSo) {
    const Set set;
    write_safetensors_file(set.path() / "model.safetensors", {bytes("a", 3)});
    EXPECT_NE(set.open().find("reading the index"), std::string::npos);
    EXPECT_EQ(SafetensorsSet(set.path(), {}).find("a")->tensor->size_bytes(), 8);
}

TEST(SafetensorsSet, AWrongTotalAndAnUnlistedTensorAreWarnings) {
    const Set set;
    const Json map = {{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}};
    set.write_index(map, 15);
    EXPECT_NE(set.open().find("total_size is 15, but the shards hold 14 bytes"), std::string::npos);
    set.write_index(map, "14");
    EXPECT_NE(set.open().find("total_size is \"14\""), std::string::npos);
    write_safetensors_file(set.second(), {bytes("b", 6), bytes("c", 1)});
    set.write_index(map, 15);
    EXPECT_NE(set.open().find("\"c\", which the index does not list"), std::string::npos);
}

TEST(SafetensorsSet, ListsEveryMissingShardAndTensor) {
    const Set set;
    set.write_index({{"a", "x.safetensors"}, {"b", "y.safetensors"}, {"c", "model-00001-of-00002.safetensors"}}, 14);
    expect_error([&] { set.open(); }, {"shards that are not there", "x.safetensors", "y.safetensors"});
    set.write_index({{"a", "model-00001-of-00002.safetensors"},
                     {"b", "model-00001-of-00002.safetensors"},
                     {"c", "model-00002-of-00002.safetensors"}},
                    14);
    expect_error([&] { set.open(); }, {"not in their shards", "\"b\" in model-00001", "\"c\" in model-00002"});
}

TEST(SafetensorsSet, ANameInTwoShardsIsAnError) {
    const Set set;
    write_safetensors_file(set.second(), {bytes("b", 6), bytes("a", 8)});
    expect_error([&] { set.open(); }, {"tensor \"a\" is in two shards", "model-00001", "model-00002"});
}

TEST(SafetensorsSet, ShardNamesMustBeBare) {
    const Set set;
    for (const char* name : {"/etc/passwd", "../x.safetensors", "a/b.safetensors", "a\\b.safetensors", "..", ""}) {
        set.write_index({{"a", name}}, 8);
        expect_error([&] { set.open(); }, {"\"a\"", "a shard must be a bare file name"});
    }
    set.write_index({{"a", 3}}, 8);
    expect_error([&] { set.open(); }, {"must be a string, found 3"});
    write_bytes(set.path() / "model.safetensors.index.json", "{\"weight_map\":[]}");
    expect_error([&] { set.open(); }, {"\"weight_map\" is missing or not an object"});
    write_bytes(set.path() / "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"f\",\"a\":\"g\"}}");
    expect_error([&] { set.open(); }, {"key \"a\" is given twice"});
}

TEST(SafetensorsSet, ADamagedShardIsNamed) {
    const Set set;
    fs::resize_file(set.second(), fs::file_size(set.second()) - 1);
    expect_error([&] { set.open(); }, {"model-00002-of-00002.safetensors", "1 are missing"});
}

TEST(SafetensorsSet, WritesTheIndexOfTheFormat) {
    const TempFolder folder;
    write_safetensors_set(folder.path(), {bytes("b", 6), bytes("a", 8), bytes("c", 2)}, 8);
    const Json index = Json::parse(read_file(folder / "model.safetensors.index.json"));
    EXPECT_EQ(index["metadata"]["total_size"], 16);
    EXPECT_EQ(index["weight_map"]["b"], "model-00001-of-00003.safetensors");
    EXPECT_EQ(index["weight_map"]["a"], "model-00002-of-00003.safetensors");
    EXPECT_EQ(index["weight_map"]["c"], "model-00003-of-00003.safetensors");
    EXPECT_EQ(SafetensorsSet(folder.path(), {}).tensors().size(), 3u);
}

}  // namespace
}  // namespace keel::test
