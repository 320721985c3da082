#include "data/duplicates.h"

#include "tests/data/helpers.h"

namespace keel {
namespace {

TEST(Duplicates, EveryCopyOfAnEarlierDocumentIsCountedAndTheFirstAreNamed) {
    DuplicateFinder finder;
    const auto add = [&](std::int32_t value, std::int32_t count) {
        for (std::int32_t i = 0; i < count; ++i) finder.append(std::vector<std::int32_t>{value + i % 7});
        finder.end_document();
    };
    EXPECT_EQ(finder.found().documents, 0);
    add(1, 5), add(2, 5), add(1, 5), add(1, 6), add(5, 0), add(2, 5), add(1, 5), add(7, 70000), add(7, 70000), add(7, 70001);
    const Duplicates d = finder.found(3);
    EXPECT_EQ(d.documents, 4);
    EXPECT_EQ(d.tokens, 5 + 5 + 5 + 70000);
    ASSERT_EQ(d.first.size(), 3u);
    EXPECT_EQ(d.first[0].document, 2);
    EXPECT_EQ(d.first[0].earlier, 0);
    EXPECT_EQ(d.first[1].document, 4);
    EXPECT_EQ(d.first[1].earlier, 1);
    EXPECT_EQ(d.first[2].document, 5);
    EXPECT_EQ(d.first[2].earlier, 0);
}

}  // namespace
}  // namespace keel
