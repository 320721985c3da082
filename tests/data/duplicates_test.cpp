#include "data/duplicates.h"

#include "tests/data/helpers.h"

namespace keel {
namespace {

TEST(Duplicates, EveryCopyOfAnEarlierDocumentIsCountedAndTheFirstAreNamed) {
    const TempFolder temp;
    TokenFileInfo info;
    info.vocab_size = 1000;
    TokenFileWriter writer(temp / "a.tok", info);
    const auto add = [&](std::int32_t value, std::int32_t count) {
        for (std::int32_t i = 0; i < count; ++i) writer.append(std::vector<std::int32_t>{value + i % 7});
        writer.end_document();
    };
    add(1, 5), add(2, 5), add(1, 5), add(1, 6), add(2, 5), add(1, 5), add(7, 70000), add(7, 70000), add(7, 70001);
    writer.finish();
    const Duplicates d = find_duplicates(TokenFile(temp / "a.tok"), 3);
    EXPECT_EQ(d.documents, 4);
    EXPECT_EQ(d.tokens, 5 + 5 + 5 + 70000);
    ASSERT_EQ(d.first.size(), 3u);
    EXPECT_EQ(d.first[0].document, 2);
    EXPECT_EQ(d.first[0].earlier, 0);
    EXPECT_EQ(d.first[1].document, 4);
    EXPECT_EQ(d.first[1].earlier, 1);
    EXPECT_EQ(d.first[2].document, 5);
    EXPECT_EQ(d.first[2].earlier, 0);
    EXPECT_EQ(find_duplicates(TokenFile(make_tokens(temp / "b.tok", {3, 4, 5}))).documents, 0);
}

}  // namespace
}  // namespace keel
