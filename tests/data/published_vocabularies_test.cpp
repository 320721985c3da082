// Ids of published vocabularies, each confirmed by two independent programs. Some of these files may not be handed on, and all
// are large: they are looked for in the folder that KEEL_TOKENIZERS names (gpt2, qwen, llama3, mistral, llama2: folders as they
// were published), and a vocabulary that is not there is reported as skipped.
#include <gtest/gtest.h>

#include <cstdlib>

#include "data/tokenizer.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

using Ids = std::vector<std::int32_t>;
using Vectors = std::vector<std::pair<std::string, Ids>>;

struct Published {
    std::string name;
    Vectors vectors;
};
void PrintTo(const Published& p, std::ostream* out) { *out << p.name; }

// Texts in the order of the lists below.
const std::vector<std::string> texts{
    "Hello, world!", " Hello", "a   b", "I'm HERE, they'LL go", "12345678 3.14", "\n\n\nfoo\r\n bar", "tab\t\tend  ",
    "na\u00efve caf\u00e9", "e\u0301 vs \u00e9", "\u65e5\u672c\u8a9e \u30c6\u30b9\u30c8", "\U0001f642\U0001f44d\U0001f3fd",
    "x=[1,2];\n    return x", "\u0661\u0662\u0663\u0664 \u2461\u00bd", "<|end_of_text|>hi<|endoftext|>"};

Vectors of_texts(const std::vector<Ids>& ids, Vectors more = {}) {
    for (std::size_t i = 0; i < ids.size(); ++i) more.emplace_back(texts[i], ids[i]);
    return more;
}

std::vector<Published> published() {
    return {
        {"gpt2",
         {{"Hello, world!", {15496, 11, 995, 0}},
          {" Hello", {18435}},
          {"a   b", {64, 220, 220, 275}},
          {"12345678 3.14", {10163, 2231, 30924, 513, 13, 1415}},
          {"na\u00efve caf\u00e9", {2616, 38776, 40304}},
          {"\U0001f642", {8582, 25081}},
          {"<|endoftext|>", {50256}}}},
        {"qwen",
         of_texts({{9707, 11, 1879, 0},
                   {21927},
                   {64, 256, 293},
                   {40, 2776, 19249, 11, 807, 6, 4086, 728},
                   {16, 17, 18, 19, 20, 21, 22, 23, 220, 18, 13, 16, 19},
                   {1406, 7975, 319, 3619},
                   {6192, 197, 6246, 256},
                   {3376, 37572, 586, 51950},
                   {963, 6165, 3958},  // NFC
                   {101059, 102819, 20711, 228, 70534},
                   {145080, 144349, 145375},
                   {87, 5818, 16, 11, 17, 935, 262, 470, 856},
                   {149, 94, 149, 95, 149, 96, 149, 97, 220, 48312, 94, 26062},
                   {27, 91, 408, 3575, 4326, 91, 29, 6023, 151643}})},
        {"llama3",
         of_texts({{9906, 11, 1917, 0},
                   {22691},
                   {64, 256, 293},
                   {40, 2846, 19804, 11, 814, 6, 4178, 733},
                   {4513, 10961, 2495, 220, 18, 13, 975},
                   {1432, 8134, 319, 3703},
                   {6323, 197, 6379, 256},
                   {3458, 38672, 588, 53050},
                   {68, 54939, 6296, 4046},
                   {102433, 102158, 113545, 71634},
                   {9468, 19044, 9468, 239, 235, 9468, 237, 121},
                   {87, 5941, 16, 11, 17, 947, 262, 471, 865},
                   {109610, 110546, 117413, 124079, 220, 119560, 27154},
                   {128001, 6151, 27, 91, 8862, 728, 428, 91, 29}},
                  {{" Vi\u1ec7t", {101798}}, {" soubor", {127539}}})},  // 588 of its tokens no merge makes
        {"mistral",
         of_texts({{22557, 28725, 1526, 28808},
                   {28705, 22557},
                   {264, 259, 287},
                   {315, 28742, 28719, 382, 20923, 28725, 590, 28742, 5292, 576},
                   {28705, 28740, 28750, 28770, 28781, 28782, 28784, 28787, 28783, 28705, 28770, 28723, 28740, 28781},
                   {28705, 13, 13, 13, 8014, 28801, 13, 2843},
                   {7683, 12, 12, 416, 259},
                   {1879, 28920, 333, 28345},
                   {317, 28949, 7709, 1233},
                   {28705, 29142, 29119, 30321, 28705, 29610, 29109, 29123},
                   {28705, 29340, 30195, 31007},
                   {1318, 12303, 28740, 28725, 28750, 1668, 13, 2287, 604, 1318},
                   {28705, 220, 164, 220, 165, 220, 166, 220, 167, 28705, 229, 148, 164, 29039}})},
        {"llama2",
         {{"Hello, world!", {15043, 29892, 3186, 29991}},
          {" Hello", {29871, 15043}},
          {"\n", {29871, 13}},
          {"a\tb", {263, 12, 29890}},
          {"12345678 3.14", {29871, 29896, 29906, 29941, 29946, 29945, 29953, 29955, 29947, 29871, 29941, 29889, 29896, 29946}},
          {"\u65e5\u672c\u8a9e", {29871, 30325, 30346, 30968}},
          {"\U0001f642", {29871, 243, 162, 156, 133}},
          {"<s>", {529, 29879, 29958}}}},
    };
}

class PublishedVocabulary : public testing::TestWithParam<Published> {};

TEST_P(PublishedVocabulary, GivesItsIdsAndItsTextsBack) {
    const char* folder = std::getenv("KEEL_TOKENIZERS");
    const std::filesystem::path path = std::filesystem::path(folder ? folder : "") / GetParam().name;
    if (!folder || !std::filesystem::exists(path))
        GTEST_SKIP() << "KEEL_TOKENIZERS names no folder that holds " << GetParam().name;
    const Tokenizer tokenizer = Tokenizer::load(path);
    Encoder cached(tokenizer);
    for (const auto& [text, ids] : GetParam().vectors) {
        EXPECT_EQ(tokenizer.encode(text), ids) << text;
        Ids again;
        cached.encode(text, again);
        EXPECT_EQ(again, ids) << text << ", with a cache";
        const bool changed = text == "e\u0301 vs \u00e9" && GetParam().name == "qwen";  // by NFC
        EXPECT_EQ(tokenizer.decode(ids), changed ? "\u00e9 vs \u00e9" : text);
    }
}

INSTANTIATE_TEST_SUITE_P(Published, PublishedVocabulary, testing::ValuesIn(published()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace keel
