// Token files of Megatron, llm.c, llm.q and nanoGPT: the bytes of their formats, what is refused, and there and back.
#include <gtest/gtest.h>

#include <cstring>

#include "data/dataset.h"
#include "data/llmc_file.h"
#include "data/megatron_file.h"
#include "data/token_file.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

std::string bytes_of_hex(std::string_view hex) {
    std::string bytes;
    int high = -1;
    for (const char c : hex) {
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) continue;
        if (high < 0) high = digit;
        else bytes += static_cast<char>(high * 16 + digit), high = -1;
    }
    return bytes;
}

template <class T> std::string with(std::string bytes, std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
}

Ids ids_of(const TokenFile& file) {
    Ids ids(static_cast<std::size_t>(file.tokens()));
    file.read(0, ids);
    return ids;
}

std::vector<std::int64_t> documents_of(const TokenFile& file) {
    std::vector<std::int64_t> begins;
    for (std::int64_t d = 0; d <= file.documents(); ++d) begins.push_back(file.document_begin(d));
    return begins;
}

std::string llmc(std::string_view start, std::string_view tokens) {
    std::string bytes = bytes_of_hex(start);
    bytes.resize(1024);
    return bytes + bytes_of_hex(tokens);
}
const std::string gpt2 = llmc("88d83401 01000000 05000000", "50c4 883c 0b00 e303 0000");
const std::string llama3 = llmc("a1d93401 07000000 05000000", "00f40100 b2260000 0b000000 7d070000 00000000");
const std::string llmq =
    llmc("42494e2e544f4b0a 02000000 04000000 05000000 80510200", "00000000 b2260000 0b000000 7d070000 00000000");

TEST(ForeignTokens, LlmcFilesAreReadWithTheVocabularyTheirMagicNames) {
    const TempFolder temp;
    const TokenFile a(temp.write("a.bin", gpt2)), b(temp.write("b.bin", llama3));
    EXPECT_EQ(a.info().format, TokenFormat::llmc);
    EXPECT_EQ(ids_of(a), (Ids{50256, 15496, 11, 995, 0}));
    EXPECT_EQ(a.info().vocab_size, 50257);
    EXPECT_EQ(ids_of(b), (Ids{128000, 9906, 11, 1917, 0}));
    EXPECT_EQ(b.info().vocab_size, 128256);
    EXPECT_EQ(documents_of(a),
              (std::vector<std::int64_t>{0, 5}));  // begins with its end-of-text token, as llm.c's files do
    EXPECT_TRUE(a.info().begins_with_bos);
    EXPECT_EQ(TokenFile(temp / "a.bin", {.vocab_size = 60000, .eos_id = 11}).info().eos_id, 11);
}

TEST(ForeignTokens, LlmcFilesAreWrittenByteForByte) {
    const TempFolder temp;
    for (const auto& [vocab, ids, want] : {std::tuple{std::int64_t{50257}, Ids{50256, 15496, 11, 995, 0}, gpt2},
                                           std::tuple{std::int64_t{128256}, Ids{128000, 9906, 11, 1917, 0}, llama3}}) {
        TokenFileInfo info;
        info.vocab_size = vocab;
        LlmcWriter writer(temp / "a.bin", info);
        writer.append(ids);
        writer.finish();
        EXPECT_TRUE(read_file(temp / "a.bin") == want);
    }
}

TEST(ForeignTokens, LlmcFilesOfMoreTokensThanTheirCountHoldsAreSeveral) {
    const TempFolder temp;
    TokenFileInfo info;
    info.vocab_size = 50257;
    LlmcWriter writer(temp / "a.bin", info, 4);
    writer.append(Ids{1, 2, 3});
    writer.append(Ids{4, 5, 6, 7, 8, 9});
    writer.finish();
    EXPECT_EQ(ids_of(TokenFile(temp / "a.bin")), (Ids{1, 2, 3, 4}));
    EXPECT_EQ(ids_of(TokenFile(temp / "a-00001.bin")), (Ids{5, 6, 7, 8}));
    EXPECT_EQ(ids_of(TokenFile(temp / "a-00002.bin")), (Ids{9}));
    EXPECT_EQ(std::distance(fs::directory_iterator(temp.path()), fs::directory_iterator()), 3);
    // A shorter run to the same name would leave the numbered files of this one beside its own.
    EXPECT_SAYS(message_of([&] { LlmcWriter(temp / "a.bin", info); }), "a-00001.bin is there from an earlier, longer run");
}

TEST(ForeignTokens, LlmcAndLlmqFilesThatDisagreeWithTheirHeaderAreRefused) {
    const TempFolder temp;
    const auto says = [&](const std::string& bytes, const TokenDeclared& declared = {}) {
        return message_of([&] { TokenFile(temp.write("a.bin", bytes), declared).verify(); });
    };
    EXPECT_EQ(says(gpt2) + says(llama3) + says(llmq), "");
    EXPECT_SAYS(says(gpt2 + "x"), "1 bytes too many");
    EXPECT_SAYS(says(gpt2.substr(0, 1033)), "1 bytes are missing");
    EXPECT_SAYS(says(gpt2.substr(0, 1023)), "the header of an llm.c file alone has 1024");
    EXPECT_SAYS(says(with(gpt2, 4, 2)), "version 2; version 1 is read");
    EXPECT_SAYS(says(with(llama3, 4, 1)), "version 1; version 7 is read");
    EXPECT_SAYS(says(with(gpt2, 8, -1)), "-1 tokens");
    EXPECT_SAYS(says(with(llama3, 1028, 128256)), "token 1 (byte 1028) is 128256, but the vocabulary has 128256");
    EXPECT_SAYS(says(gpt2, {.vocab_size = 50000}), "token 0 (byte 1024) is 50256");
    EXPECT_SAYS(says(gpt2, {.vocab_size = 70000}), "cannot be of a vocabulary of 70000");
    EXPECT_SAYS(says(llmq.substr(0, 1000)), "llm.q file alone");
    EXPECT_SAYS(says(with(llmq, 8, 3)), "version 3");
    EXPECT_SAYS(says(with(llmq, 12, 2)), "2 bytes per token");
    EXPECT_SAYS(says(with(llmq, 16, 4)), "4 bytes too many");
    EXPECT_SAYS(says(with(llmq, 20, 0)), "vocabulary of 0");
    EXPECT_SAYS(says(with(llmq, 24, 2)), "flag of the mask is 2");
    EXPECT_SAYS(says(with(llmq, 24, 1)), "1 bytes are missing");
    EXPECT_SAYS(says(with(llmq, 1024, 151936)), "is 151936, but the vocabulary has 151936");
}

TEST(ForeignTokens, LlmqFilesSayTheirVocabularyAndMayHaveAMask) {
    const TempFolder temp;
    const TokenFile file(temp.write("a.bin", with(llmq, 24, 1) + "\x16"), {.eos_id = 11});  // 0b10110
    EXPECT_EQ(file.info().vocab_size, 151936);
    EXPECT_EQ(ids_of(file), (Ids{0, 9906, 11, 1917, 0}));
    EXPECT_EQ(documents_of(file), (std::vector<std::int64_t>{0, 3, 5}));
    std::string mask;
    for (int i = 0; i < 5; ++i) mask += file.is_target(i) ? '1' : '0';
    EXPECT_EQ(mask, "01101");
}

TEST(ForeignTokens, EvaluationFilesOfLlmcAreNoTokensButAreUnderstood) {
    const TempFolder temp;
    const std::string example =
        bytes_of_hex("ffff 2400 0000 0200 0400 0300 0a00 0b00 0c00 0100 1400 0100 1500 0100 1600 0200 1700 1800");
    ASSERT_EQ(example.size(), 36u);
    const std::string good = llmc("8ad83401 01000000 02000000 24000000", "") + example + example;
    const std::string path = temp.write("a.bin", good);
    EXPECT_SAYS(message_of([&] { TokenFile file(path); }), "2 multiple-choice examples");
    const LlmcEval eval = read_llmc_eval(path);
    EXPECT_EQ(eval.examples, 2);
    EXPECT_EQ(eval.longest_bytes, 36);
    EXPECT_EQ(eval.completions, 8);
    EXPECT_EQ(eval.tokens, 16);
    for (std::size_t size = 1024; size < good.size(); ++size)
        EXPECT_NE(message_of([&] { read_llmc_eval(temp.write("b.bin", good.substr(0, size))); }), "") << size;
    EXPECT_SAYS(message_of([&] { read_llmc_eval(temp.write("b.bin", good + "xx")); }), "2 bytes behind");
}

TEST(ForeignTokens, BareNumbersAreReadOnlyWithADeclaredTypeAndVocabulary) {
    const TempFolder temp;
    const std::string path = temp.write("train.bin", bytes_of_hex("0100 0200 ff00 0300 ff00"));
    EXPECT_SAYS(message_of([&] { TokenFile file(path); }), "--data.raw_dtype uint16");
    EXPECT_SAYS(message_of([&] { TokenFile(path, {.dtype = "uint16"}); }), "--data.token_vocab");
    EXPECT_SAYS(message_of([&] { TokenFile(path, {.vocab_size = 300, .dtype = "int8"}); }),
                "uint16 and uint32 are read");
    EXPECT_SAYS(message_of([&] { TokenFile(path, {.vocab_size = 300, .dtype = "uint32"}); }),
                "no number of tokens of 4 bytes");
    EXPECT_SAYS(message_of([&] { TokenFile(path, {.vocab_size = 65537, .dtype = "uint16"}); }),
                "cannot be of a vocabulary of 65537");
    // Documents are found by reading everything, so a wrong id is too; without a separator it is found when read.
    EXPECT_SAYS(message_of([&] { TokenFile(path, {.vocab_size = 255, .eos_id = 3, .dtype = "uint16"}); }),
                "token 2 (byte 4) is 255");
    const TokenFile file(path, {.vocab_size = 256, .eos_id = 255, .dtype = "uint16"});
    EXPECT_EQ(ids_of(file), (Ids{1, 2, 255, 3, 255}));
    EXPECT_EQ(documents_of(file), (std::vector<std::int64_t>{0, 3, 5}));
    EXPECT_TRUE(file.info().ends_with_eos);
    EXPECT_EQ(TokenFile(path, {.vocab_size = 65536, .dtype = "uint16"}).documents(), 1);
}

const std::string idx = bytes_of_hex(
    "4d4d49444944580000 0100000000000000 08 0300000000000000 0300000000000000 02000000 03000000 01000000"
    "0000000000000000 0400000000000000 0a00000000000000 0000000000000000 0200000000000000 0300000000000000");
const std::string bin = bytes_of_hex("0100 0200 0300 0400 0500 0600");

TEST(ForeignTokens, AMegatronPairIsReadByAnyOfItsNames) {
    const TempFolder temp;
    temp.write("a.bin", bin), temp.write("a.idx", idx);
    for (const char* name : {"a", "a.bin", "a.idx"}) {
        const TokenFile file(temp / name, {.vocab_size = 7});
        EXPECT_EQ(file.info().format, TokenFormat::megatron);
        EXPECT_EQ(ids_of(file), (Ids{1, 2, 3, 4, 5, 6}));
        EXPECT_EQ(documents_of(file), (std::vector<std::int64_t>{0, 5, 6}));
        ASSERT_EQ(file.info().sequences, 3);
        EXPECT_EQ(file.sequence_begin(1), 2);
        EXPECT_EQ(file.sequence_begin(3), 6);
        EXPECT_EQ(file.document_of(4), 0);
        EXPECT_EQ(file.document_of(5), 1);
    }
    EXPECT_SAYS(message_of([&] { TokenFile(temp / "a", {.vocab_size = 6}).verify(); }), "token 5 (byte 10) is 6");
    fs::remove(temp / "a.bin");
    EXPECT_SAYS(message_of([&] { TokenFile file(temp / "a"); }), "is the index of");
    temp.write("a.bin", bin), fs::remove(temp / "a.idx");
    EXPECT_SAYS(message_of([&] { TokenFile file(temp / "a"); }), "no a.idx beside it");
}

TEST(ForeignTokens, EveryNumberOfAMegatronIndexIsChecked) {
    const TempFolder temp;
    const auto says = [&](const std::string& index, const std::string& tokens = bin) {
        temp.write("a.bin", tokens), temp.write("a.idx", index);
        return message_of([&] { TokenFile file(temp / "a"); });
    };
    EXPECT_EQ(says(idx), "");
    EXPECT_SAYS(says(with(idx, 9, 2)), "version 2");
    EXPECT_SAYS(says(with(idx, 17, std::uint8_t{6})), "floating point");
    EXPECT_SAYS(says(with(idx, 17, std::uint8_t{9})), "type of its tokens is 9");
    EXPECT_SAYS(says(with(idx, 17, std::uint8_t{4})), "sequence 1 begins at byte 4");
    EXPECT_SAYS(says(with(idx, 18, std::uint64_t{4})), "12 bytes are missing");
    EXPECT_SAYS(says(with(idx, 18, ~std::uint64_t{0})), "cannot hold");
    EXPECT_SAYS(says(with(idx, 26, std::uint64_t{2})), "8 bytes too many");
    EXPECT_SAYS(says(idx.substr(0, 20)), "header of a Megatron index alone has 34");
    EXPECT_SAYS(says(idx + "abc"), "a mode per sequence");
    EXPECT_SAYS(says(with(idx, 34, -2)), "sequence 0 has -2 tokens");
    EXPECT_SAYS(says(with(idx, 54, std::int64_t{2})), "sequence 1 begins at byte 2");
    EXPECT_SAYS(says(idx, bin + "x"), "1 bytes too many");
    EXPECT_SAYS(says(idx, bin.substr(0, 10)), "2 bytes are missing");
    EXPECT_SAYS(says(with(idx, 70, std::int64_t{1})), "document 0 begins at sequence 1");
    EXPECT_SAYS(says(with(idx, 78, std::int64_t{4})), "document 1 begins at sequence 4 of 3");
    EXPECT_SAYS(says(with(idx, 86, std::int64_t{2})), "document 2 begins at sequence 2");
    std::string empty = idx.substr(0, 34);
    EXPECT_SAYS(says(with(with(empty, 18, std::int64_t{0}), 26, std::int64_t{0}), ""), "no document indices");
}

TEST(ForeignTokens, MegatronPairsAreWrittenByteForByteAndReadBack) {
    const TempFolder temp;
    TokenFileInfo info;
    info.vocab_size = 100;
    MegatronWriter writer(temp / "a", info);
    writer.append(Ids{1, 2}), writer.append(Ids{3}), writer.end_document();
    writer.append(Ids{4, 5}), writer.end_document();
    writer.finish();
    EXPECT_EQ(read_file(temp / "a.bin"), bytes_of_hex("0100020003000400 0500"));
    EXPECT_EQ(read_file(temp / "a.idx").size(), 82u);
    EXPECT_EQ(documents_of(TokenFile(temp / "a")), (std::vector<std::int64_t>{0, 3, 5}));
    for (const auto& [vocab, width] : {std::pair{65499, 2}, std::pair{65500, 4}, std::pair{200000, 4}}) {
        info.vocab_size = vocab;
        MegatronWriter wide(temp / "b.bin", info);
        wide.append(Ids{vocab - 1, 0});
        EXPECT_SAYS(message_of([&] { wide.append(Ids{vocab}); }), "the vocabulary has");
        wide.finish();
        const TokenFile file(temp / "b.idx", {.vocab_size = vocab});
        EXPECT_EQ(file.info().token_bytes, width);
        EXPECT_EQ(ids_of(file), (Ids{vocab - 1, 0}));
    }
}

TEST(ForeignTokens, EveryIntegerTypeOfMegatronIsReadAndNegativeIdsAreNone) {
    const TempFolder temp;
    const std::string one = bytes_of_hex(
        "4d4d49444944580000 0100000000000000 01 0100000000000000 0200000000000000 02000000 0000000000000000"
        "0000000000000000 0100000000000000");
    for (const auto& [code, tokens] :
         {std::pair{1, "0705"}, std::pair{2, "0705"}, std::pair{3, "0700 0500"}, std::pair{4, "07000000 05000000"},
          std::pair{5, "0700000000000000 0500000000000000"}, std::pair{8, "0700 0500"}}) {
        temp.write("a.idx", with(one, 17, static_cast<std::uint8_t>(code)));
        std::string bytes = bytes_of_hex(tokens);
        temp.write("a.bin", bytes);
        EXPECT_EQ(ids_of(TokenFile(temp / "a", {.vocab_size = 8})), (Ids{7, 5})) << code;
        bytes.back() = static_cast<char>(0x80);
        temp.write("a.bin", bytes);
        EXPECT_SAYS(message_of([&] { ids_of(TokenFile(temp / "a", {.vocab_size = 8})); }), code == 1   ? "is 128"
                                                                                           : code == 8 ? "is 32773"
                                                                                                       : "is -");
    }
}

// Where a shard begins in the middle of a document, its first token does not tell on which side of documents the mark is.
TEST(ForeignTokens, TheFirstShardOfASourceTellsOnWhichSideOfDocumentsTheirMarkStands) {
    const TempFolder temp;
    TokenFileInfo info;
    info.vocab_size = 50257;
    LlmcWriter writer(temp / "a.bin", info, 4);
    writer.append(Ids{50256, 1, 2, 3, 4, 50256, 5, 6, 7, 50256, 8, 9});
    writer.finish();
    fs::rename(temp / "a.bin", temp / "a-00000.bin");
    EXPECT_EQ(documents_of(TokenFile(temp / "a-00001.bin")), (std::vector<std::int64_t>{0, 2, 4})) << "alone it must be guessed";
    const Dataset data({.paths = {temp / "a-*.bin"}, .weights = {}, .seq_len = 2});
    ASSERT_EQ(data.files(), 3);
    EXPECT_EQ(documents_of(data.file(0)), (std::vector<std::int64_t>{0, 4}));
    EXPECT_EQ(documents_of(data.file(1)), (std::vector<std::int64_t>{0, 1, 4}));
    EXPECT_EQ(documents_of(data.file(2)), (std::vector<std::int64_t>{0, 1, 4}));
    EXPECT_TRUE(data.file(2).info().begins_with_bos);
}

// A file of keel's has a table of its documents, and its flag says something else.
TEST(ForeignTokens, AFileWithATableOfDocumentsTellsNothingAboutThoseWithout) {
    const TempFolder temp;
    const auto mixed = temp.path() / "mixed";
    fs::create_directory(mixed);
    make_tokens((mixed / "a.tok").string(), {4, 4}, 50257, 0);
    TokenFileInfo info;
    info.vocab_size = 50257;
    LlmcWriter writer(mixed / "b.bin", info);
    writer.append(Ids{50256, 1, 2, 50256, 3, 4});
    writer.finish();
    const Dataset data({.paths = {mixed.string()}, .weights = {}, .seq_len = 2});
    EXPECT_EQ(documents_of(data.file(1)), (std::vector<std::int64_t>{0, 3, 6}));
}

}  // namespace
}  // namespace keel
