// Which layers each virtual stage holds: equal shares, unequal ends, layouts in words, and refusals that say what would
// work.
#include "engine/parallel/layers.h"

#include <gtest/gtest.h>

#include "kernels/base/error.h"

using namespace keel;

namespace {

std::vector<int> sizes(const LayerSplit& split) {
    std::vector<int> out;
    for (const LayerRange& r : layer_split(split)) out.push_back(r.size());
    return out;
}

std::string refusal(const LayerSplit& split) {
    try {
        layer_split(split);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::usage);
        return error.what();
    }
    return "accepted";
}

std::string layout_refusal(const std::string& layout, int layers = 4, int stages = 2) {
    return refusal({.layers = layers, .stages = stages, .layout = layout});
}

}  // namespace

TEST(LayerSplit, SharesEquallyOverVirtualStages) {
    const std::vector<LayerRange> whole = layer_split({.layers = 5});
    EXPECT_EQ(whole, (std::vector<LayerRange>{{0, 5, true, true}}));
    // 8 layers, 2 ranks of 2 chunks: rank 0 holds 0-1 and 4-5, rank 1 holds 2-3 and 6-7.
    EXPECT_EQ(layer_split({.layers = 8, .stages = 2, .chunks = 2}),
              (std::vector<LayerRange>{
                  {0, 2, true, false}, {2, 4, false, false}, {4, 6, false, false}, {6, 8, false, true}}));
}

TEST(LayerSplit, CountsEmbeddingAndHeadAsLayersOnRequest) {
    EXPECT_EQ(sizes({.layers = 30, .stages = 4, .count_embedding = true, .count_head = true}),
              (std::vector{7, 8, 8, 7}));
    EXPECT_EQ(sizes({.layers = 31, .stages = 4, .count_embedding = true}), (std::vector{7, 8, 8, 8}));
    EXPECT_EQ(sizes({.layers = 31, .stages = 4, .count_head = true}), (std::vector{8, 8, 8, 7}));
    EXPECT_EQ(sizes({.layers = 14, .stages = 4, .chunks = 2, .count_embedding = true, .count_head = true}),
              (std::vector{1, 2, 2, 2, 2, 2, 2, 1}));
    EXPECT_EQ(sizes({.layers = 7, .count_embedding = true, .count_head = true}), (std::vector{7}));
}

TEST(LayerSplit, TakesGivenEnds) {
    EXPECT_EQ(sizes({.layers = 10, .stages = 4, .first = 1, .last = 3}), (std::vector{1, 3, 3, 3}));
    EXPECT_EQ(sizes({.layers = 10, .stages = 4, .first = 1}), (std::vector{1, 3, 3, 3}));
    EXPECT_EQ(sizes({.layers = 7, .stages = 2, .last = 3}), (std::vector{4, 3}));
    EXPECT_EQ(sizes({.layers = 7, .stages = 2, .first = 3, .last = 4}), (std::vector{3, 4}));
    // Chunks share a rank's layers: 2 + 4 + 4 + 2 on ranks become 1 2 2 1 twice.
    EXPECT_EQ(sizes({.layers = 12, .stages = 4, .chunks = 2, .first = 2, .last = 2}),
              (std::vector{1, 2, 2, 1, 1, 2, 2, 1}));
}

TEST(LayerSplit, ReadsLayouts) {
    EXPECT_EQ(sizes({.layers = 4, .stages = 2, .layout = "Et|tttL"}), (std::vector{1, 3}));
    EXPECT_EQ(sizes({.layers = 9, .stages = 2, .chunks = 2, .layout = " Et*2 | (t*3|)*2, tL"}),
              (std::vector{2, 3, 3, 1}));
    EXPECT_EQ(layer_split({.layers = 4, .stages = 4, .layout = "E|tt|tt|L"}),  // a stage may hold no block at all
              (std::vector<LayerRange>{
                  {0, 0, true, false}, {0, 2, false, false}, {2, 4, false, false}, {4, 4, false, true}}));
    EXPECT_EQ(expand_layout("((t*2|)*2E)*2"), (std::vector<std::string>{"tt", "tt", "Ett", "tt", "E"}));
}

TEST(LayerSplit, ReadsTheLayoutOfALargeReleasedModel) {
    const std::vector<std::string> stages = expand_layout("Et*3|(tt|)*29,m|L");
    ASSERT_EQ(stages.size(), 32u);
    EXPECT_EQ(stages[0], "Ettt");
    for (std::size_t i = 1; i < 30; ++i) EXPECT_EQ(stages[i], "tt");
    EXPECT_EQ(stages[30], "m");
    EXPECT_EQ(stages[31], "L");
    EXPECT_EQ(refusal({.layers = 61, .stages = 16, .chunks = 2, .layout = "Et*3|(tt|)*29,m|L"}),
              "--parallel.layers \"Et*3|(tt|)*29,m|L\": stage 30 (m) asks for multi-token prediction, which keel does "
              "not have");
    const std::vector<int> counts = sizes({.layers = 61, .stages = 16, .chunks = 2, .layout = "Et*3|(tt|)*29|L"});
    EXPECT_EQ(counts.front(), 3);
    EXPECT_EQ(counts[30], 0);
}

TEST(LayerSplit, RefusesWhatDoesNotComeOutEvenAndProposesWhatDoes) {
    EXPECT_EQ(refusal({.layers = 30, .stages = 4}),
              "30 layers do not divide over --parallel.pp 4 stages. Give --parallel.count_embedding true "
              "--parallel.count_head "
              "true (7 8 8 7); or --parallel.first_layers 7 --parallel.last_layers 7 (7 8 8 7); or --parallel.layers "
              "\"Et*7|t*8|t*8|t*7L\"");
    EXPECT_EQ(refusal({.layers = 5, .stages = 2, .chunks = 2}),
              "5 layers do not divide over --parallel.pp 2 times --parallel.chunks 2 stages. Give --parallel.layers "
              "\"Et|t|t*2|tL\"");
    EXPECT_EQ(refusal({.layers = 10, .stages = 4, .first = 2, .last = 3}),
              "10 layers do not divide over --parallel.pp 4 stages with --parallel.first_layers 2 and "
              "--parallel.last_layers 3. "
              "Give --parallel.count_embedding true --parallel.count_head true (2 3 3 2); or --parallel.first_layers 2 "
              "--parallel.last_layers 2 (2 3 3 2); or --parallel.layers \"Et*2|t*3|t*3|t*2L\"");
    EXPECT_EQ(refusal({.layers = 2, .stages = 4, .count_embedding = true}),
              "2 layers do not divide over --parallel.pp 4 stages with --parallel.count_embedding. Give "
              "--parallel.count_embedding true --parallel.count_head true (0 1 1 0); or --parallel.layers \"E|t|t|L\"");
}

TEST(LayerSplit, EveryProposedLayoutWorks) {
    for (int layers = 1; layers <= 40; ++layers)
        for (int stages = 2; stages <= 8; ++stages)
            for (int chunks = 1; chunks <= 3; ++chunks) {
                const std::string text = refusal({.layers = layers, .stages = stages, .chunks = chunks});
                if (text == "accepted") continue;
                const std::size_t at = text.find("--parallel.layers \"") + 19;
                const LayerSplit split{.layers = layers, .stages = stages, .chunks = chunks,
                                       .layout = text.substr(at, text.size() - at - 1)};
                const std::vector<int> counts = sizes(split);
                const auto [low, high] = std::minmax_element(counts.begin(), counts.end());
                ASSERT_LE(*high - *low, 1) << text;
            }
}

TEST(LayerSplit, RefusesContradictions) {
    EXPECT_EQ(refusal({.layers = 8, .stages = 2, .first = 3, .layout = "Et*4|t*4L"}),
              "--parallel.layers says where every layer lies; leave --parallel.first_layers, --parallel.last_layers, "
              "--parallel.count_embedding and --parallel.count_head out");
    EXPECT_EQ(
        refusal({.layers = 8, .stages = 2, .first = 3, .count_head = true}),
        "--parallel.count_embedding and --parallel.count_head are another way to say what --parallel.first_layers and "
        "--parallel.last_layers say; give one or the other");
    EXPECT_EQ(refusal({.layers = 8, .stages = 1, .first = 3}),
              "--parallel.first_layers and --parallel.last_layers need --parallel.pp of at least 2");
    EXPECT_EQ(refusal({.layers = 0}), "--model.layers is 0; it must be at least 1");
    EXPECT_EQ(refusal({.layers = 8, .stages = 2, .first = -1}),
              "--parallel.first_layers -1 and --parallel.last_layers 0: give numbers of layers, or 0 to choose");
}

TEST(LayerSplit, RefusesLayoutsThatSayNothingUsable) {
    EXPECT_EQ(layout_refusal("Ett|t|tL"), "--parallel.layers \"Ett|t|tL\": has 3 stages, but --parallel.pp 2 makes 2");
    EXPECT_EQ(layout_refusal("Ett|tL"), "--parallel.layers \"Ett|tL\": has 3 blocks (t), but --model.layers is 4");
    EXPECT_EQ(layout_refusal("tt|ttL"),
              "--parallel.layers \"tt|ttL\": stage 0 is \"tt\"; the first stage, and no other, begins with E");
    EXPECT_EQ(layout_refusal("Ett|tt"),
              "--parallel.layers \"Ett|tt\": stage 1 is \"tt\"; the last stage, and no other, ends with L");
    EXPECT_EQ(layout_refusal("EttL|ttL"),
              "--parallel.layers \"EttL|ttL\": stage 0 is \"EttL\"; the last stage, and no other, ends with L");
    EXPECT_EQ(layout_refusal("EtEt|ttL"),
              "--parallel.layers \"EtEt|ttL\": stage 0 is \"EtEt\"; there is one E, at the very beginning, and one L, "
              "at the very end");
    EXPECT_EQ(layout_refusal("Etx|ttL"),
              "--parallel.layers \"Etx|ttL\", character 3: 'x' is not E (embedding), t (block), L (head), |, ( or )");
    EXPECT_EQ(layout_refusal("E(tt|tt"), "--parallel.layers \"E(tt|tt\", character 8: a ( is never closed");
    EXPECT_EQ(layout_refusal("Ett)|ttL"), "--parallel.layers \"Ett)|ttL\", character 4: this ) closes nothing");
    EXPECT_EQ(layout_refusal("Et*|ttL"), "--parallel.layers \"Et*|ttL\", character 4: a number must follow *");
    EXPECT_EQ(layout_refusal("Et*0|ttL"),
              "--parallel.layers \"Et*0|ttL\", character 5: repeats 0 times; leave the item out");
    EXPECT_EQ(layout_refusal("Et*99999999999999999999|ttL"),
              "--parallel.layers \"Et*99999999999999999999|ttL\", character 24: is longer than 65536 items");
    EXPECT_EQ(layout_refusal("((((((((((t))))))))))"),
              "--parallel.layers \"((((((((((t))))))))))\", character 10: groups are nested more than 8 deep");
    EXPECT_EQ(layout_refusal("(((t*60000)*60000)*60000)*60000"),
              "--parallel.layers \"(((t*60000)*60000)*60000)*60000\", character 18: is longer than 65536 items");
}
