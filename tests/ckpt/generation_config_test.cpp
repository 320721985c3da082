// Which tokens end a generated text, by the files of a model folder.
#include "ckpt/generation_config.h"

#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(EndingIds, AreThoseOfGenerationConfigElseOfConfig) {
    const TempFolder folder;
    EXPECT_EQ(ending_ids(folder.path(), 100), Ids{});
    folder.write("config.json", R"({"eos_token_id": 7})");
    EXPECT_EQ(ending_ids(folder.path(), 100), Ids{7});
    folder.write("generation_config.json", R"({"temperature": 0.6})");
    EXPECT_EQ(ending_ids(folder.path(), 100), Ids{7});
    folder.write("generation_config.json", R"({"eos_token_id": null})");
    EXPECT_EQ(ending_ids(folder.path(), 100), Ids{7});
    folder.write("generation_config.json", R"({"eos_token_id": [1, 8, 9]})");
    EXPECT_EQ(ending_ids(folder.path(), 100), (Ids{1, 8, 9}));
}

TEST(EndingIds, ThatAreNoneAreRefusedWithTheirFile) {
    const TempFolder folder;
    for (const char* ids : {"-1", "100", "1.5", "\"x\"", "[1, 100]", "[[1]]", "{}", "true"}) {
        folder.write("generation_config.json", concat("{\"eos_token_id\": ", ids, "}"));
        SCOPED_TRACE(ids);
        expect_error([&] { ending_ids(folder.path(), 100); }, {"generation_config.json", "\"eos_token_id\" is ", "below 100"});
    }
    folder.write("generation_config.json", "[]");
    expect_error([&] { ending_ids(folder.path(), 100); }, {"generation_config.json", "expected a JSON object"});
}

}  // namespace
}  // namespace keel::test
