// Pictures of pipeline schedules: what is drawn is what was played.
#include "engine/parallel/schedule_picture.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "kernels/base/error.h"

using namespace keel;

namespace {

std::size_t count(const std::string& text, const std::string& word) {
    std::size_t n = 0;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++n;
    return n;
}

}  // namespace

TEST(SchedulePicture, DrawsLanesForATerminal) {
    const PipelineRun run = run_pipeline(PipelineSchedule::one_f_one_b, {.stages = 2, .micro_batches = 2}, {});
    EXPECT_EQ(schedule_text(run, "block forwards"),
              "rank 0 |F0|F1......|B0   ...|B1   \n"
              "rank 1 ...|F0|B0   |F1|B1   ......\n"
              "\n"
              "1f1b, 2 stages, 2 micro-batches: 9 block forwards, bubble 50 % of the busiest rank's work, ranks idle "
              "33.33 % of "
              "the time\n");
}

TEST(SchedulePicture, NamesChunksByLetters) {
    const PipelineRun run =
        run_pipeline(PipelineSchedule::interleaved, {.stages = 2, .chunks = 2, .micro_batches = 2}, {});
    const std::string text = schedule_text(run, "");
    // Rank 1 has F0b until 4, B0b until 6, F1b until 7, B1b until 9: that is when rank 0 goes on.
    EXPECT_EQ(text.substr(0, text.find('\n')), "rank 0 |F0a|F1a|F0b|F1b........|B0b    ....|B1b    |B0a    |B1a    ");
}

TEST(SchedulePicture, ContinuesLongLanesInBands) {
    const PipelineRun run = run_pipeline(PipelineSchedule::one_f_one_b, {.stages = 2, .micro_batches = 40}, {});
    const std::string text = schedule_text(run, "", 60, 4);
    EXPECT_EQ(count(text, "rank 0 "), 4u);
    EXPECT_NE(text.find("more such bands; an SVG file shows them all"), std::string::npos);
    for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
        if (text.compare(at, 4, "rank") == 0) {
            EXPECT_LE(end - at, 60u);
        }
}

TEST(SchedulePicture, IsAFileOfItsOwnWithABoxPerAction) {
    const PipelineRun run =
        run_pipeline(PipelineSchedule::interleaved, {.stages = 4, .chunks = 2, .micro_batches = 8}, {});
    const std::string svg = schedule_svg(run, "block forwards");
    EXPECT_EQ(svg.substr(0, 4), "<svg");
    EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
    EXPECT_EQ(count(svg, "rx=\"2\""), 4u * 2 * 2 * 8 + 4);  // and four squares of the legend
    EXPECT_EQ(count(svg, "class=\"lane\""), 4u);
    EXPECT_EQ(count(svg, ">7b</text>"), 8u);  // wide enough for every label: forward and backward on four ranks
    EXPECT_EQ(count(svg, "57 block forwards, bubble 18.75 %"), 2u);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
}

TEST(SchedulePicture, StandsStagesWithoutWork) {
    // A stage that holds only the embedding takes no time: no box, and no division by it.
    const PipelineRun run = run_pipeline(PipelineSchedule::one_f_one_b, {.stages = 2, .micro_batches = 3},
                                         {.forward = {0, 2}, .backward = {0, 4}});
    EXPECT_NE(schedule_text(run, "").find("rank 1 |F0|B0   |F1|B1   |F2|B2   \n"), std::string::npos);
    EXPECT_EQ(schedule_svg(run, "").find("nan"), std::string::npos);
    EXPECT_EQ(schedule_svg(run, "").find("inf"), std::string::npos);
}

TEST(SchedulePicture, RefusesMoreThanAReaderCanSee) {
    const PipelineRun run = run_pipeline(PipelineSchedule::one_f_one_b, {.stages = 4, .micro_batches = 8000}, {});
    try {
        schedule_svg(run, "");
        FAIL() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(
            std::string(error.what()),
            "a picture of 64000 forwards and backwards is more than a reader can see (50000 is the most); draw fewer "
            "micro-batches (--train.global_batch) or stages (--parallel.pp)");
    }
}

TEST(SchedulePicture, TheDocumentsShowWhatIsDrawn) {
    const auto file = [](const char* name) {
        std::ifstream in(std::string(KEEL_SOURCE_DIR "/docs/") + name);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    EXPECT_EQ(file("pipeline_1f1b.svg"),
              schedule_svg(run_pipeline(PipelineSchedule::one_f_one_b, {.stages = 4, .micro_batches = 8}, {}),
                           "stage forwards"));
    EXPECT_EQ(file("pipeline_interleaved.svg"),
              schedule_svg(run_pipeline(PipelineSchedule::interleaved, {.stages = 4, .chunks = 2, .micro_batches = 8},
                                        {.forward = {0.5}, .backward = {1}}),
                           "stage forwards"));
}
