#include "data/token_file.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>

#include "tests/data/helpers.h"

namespace keel {
namespace {

// A small good file, as bytes.
std::string good_bytes(const TempFolder& temp, std::int64_t vocab = 50000) {
    return read_file(make_tokens(temp / "good.tok", {3, 1, 4}, vocab));
}

// Puts `value` at `offset`, and makes the header's own hash match again if asked.
template <class T> std::string with(std::string bytes, std::size_t offset, T value, bool rehash = true) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    const std::uint64_t hash = XXH3_64bits(bytes.data(), 248);
    if (rehash) std::memcpy(bytes.data() + 248, &hash, 8);
    return bytes;
}

// Makes every hash of a small file match its content again.
std::string rehashed(std::string bytes) {
    std::uint32_t width;
    std::uint64_t tokens;
    std::memcpy(&width, bytes.data() + 12, 4);
    std::memcpy(&tokens, bytes.data() + 16, 8);
    const std::size_t token_bytes = (tokens * width + 7) / 8 * 8, behind = 256 + token_bytes;
    for (std::size_t at = 0, block = 0; at < token_bytes; at += 65536, ++block) {
        const std::uint64_t hash = XXH3_64bits(bytes.data() + 256 + at, std::min<std::size_t>(65536, token_bytes - at));
        std::memcpy(bytes.data() + bytes.size() - (token_bytes + 65535) / 65536 * 8 + block * 8, &hash, 8);
    }
    return with(bytes, 80, XXH3_64bits(bytes.data() + behind, bytes.size() - behind));
}

std::string open_message(const TempFolder& temp, std::string_view bytes) {
    const std::string path = temp.write("bad.tok", bytes);
    return message_of([&] { TokenFile(path).verify(); });
}

TEST(TokenFile, GivesBackWhatWasWritten) {
    for (const std::int64_t vocab : {300, 65536, 65537, 200000}) {
        const TempFolder temp;
        TokenFileInfo info;
        info.vocab_size = vocab;
        info.tokenizer_hash = 0x1234567890abcdef;
        info.eos_id = 2;
        info.ends_with_eos = true;
        TokenFileWriter writer(temp / "a.tok", info);
        const auto top = static_cast<std::int32_t>(vocab - 1);
        writer.append(std::vector<std::int32_t>{1, top});
        writer.append(std::vector<std::int32_t>{2});
        writer.end_document();
        writer.end_document();  // an empty document is none
        writer.append(std::vector<std::int32_t>{top, 2});
        writer.count_source(10, 1);
        writer.finish();

        const TokenFile file(temp / "a.tok");
        file.verify();
        EXPECT_EQ(file.info().token_bytes, vocab <= 65536 ? 2 : 4);
        EXPECT_EQ(file.tokens(), 5);
        EXPECT_EQ(file.documents(), 2);
        EXPECT_EQ(file.info().source_bytes, 10);
        EXPECT_EQ(file.info().replaced, 1);
        EXPECT_EQ(file.info().eos_id, 2);
        EXPECT_EQ(file.info().bos_id, -1);
        EXPECT_TRUE(file.info().ends_with_eos);
        EXPECT_EQ(file.info().tokenizer_hash, 0x1234567890abcdefu);
        std::vector<std::int32_t> ids(5);
        file.read(0, ids);
        EXPECT_EQ(ids, (std::vector<std::int32_t>{1, top, 2, top, 2}));
        for (std::int64_t t = 0; t < 5; ++t) EXPECT_EQ(file.document_of(t), t < 3 ? 0 : 1);
        EXPECT_EQ(file.document_begin(1), 3);
        EXPECT_EQ(file.document_begin(2), 5);
        EXPECT_SAYS(message_of([&] { file.read(3, ids); }), "3…8 of 5");
    }
}

TEST(TokenFile, AnEmptyFileIsAFileWithoutDocuments) {
    const TempFolder temp;
    TokenFileInfo info;
    info.vocab_size = 10;
    TokenFileWriter(temp / "a.tok", info).finish();
    const TokenFile file(temp / "a.tok");
    file.verify();
    EXPECT_EQ(file.tokens(), 0);
    EXPECT_EQ(file.documents(), 0);
}

TEST(TokenFile, AnIdThatDoesNotFitTheVocabularyIsNeverWrapped) {
    const TempFolder temp;
    TokenFileInfo info;
    info.vocab_size = 65536;
    TokenFileWriter writer(temp / "a.tok", info);
    EXPECT_SAYS(message_of([&] { writer.append(std::vector<std::int32_t>{7, 65536}); }), "token 1 is 65536");
    EXPECT_SAYS(message_of([&] { writer.append(std::vector<std::int32_t>{-1}); }), "token 0 is -1");
    info.eos_id = 65536;
    EXPECT_SAYS(message_of([&] { TokenFileWriter(temp / "b.tok", info); }), "eos id 65536");
    info = {};
    EXPECT_SAYS(message_of([&] { TokenFileWriter(temp / "b.tok", info); }), "vocabulary of 0");
}

TEST(TokenFile, NothingAppearsUnderTheNameBeforeItIsFinished) {
    const TempFolder temp;
    {
        TokenFileInfo info;
        info.vocab_size = 10;
        TokenFileWriter writer(temp / "a.tok", info);
        writer.append(std::vector<std::int32_t>{1, 2, 3});
        EXPECT_FALSE(std::filesystem::exists(temp / "a.tok"));
    }
    EXPECT_TRUE(std::filesystem::is_empty(temp.path()));
}

TEST(TokenFile, EveryHeaderFieldIsChecked) {
    const TempFolder temp;
    const std::string good = good_bytes(temp);
    ASSERT_EQ(open_message(temp, good), "");
    EXPECT_SAYS(open_message(temp, with(good, 0, 'K')), "not a token file");
    EXPECT_SAYS(open_message(temp, with(good, 8, 3u)), "version 3");
    EXPECT_SAYS(open_message(temp, with(good, 8, 1u)), "8 bytes too many");  // version 1 has no hashes of blocks
    EXPECT_SAYS(open_message(temp, with(good, 12, 3u)), "3 bytes per token");
    EXPECT_SAYS(open_message(temp, with(good, 12, 4u)), "do not go with a vocabulary of 50000");
    EXPECT_SAYS(open_message(temp, with(good, 16, std::uint64_t{9})), "bytes are missing");
    EXPECT_SAYS(open_message(temp, with(good, 16, std::uint64_t{4})), "8 bytes too many");
    EXPECT_SAYS(open_message(temp, with(good, 16, ~std::uint64_t{0})), "cannot hold");
    EXPECT_SAYS(open_message(temp, with(good, 24, std::uint64_t{4})), "8 bytes are missing");
    EXPECT_SAYS(open_message(temp, with(good, 24, ~std::uint64_t{0})), "cannot hold");
    EXPECT_SAYS(open_message(temp, with(good, 24, std::uint64_t{0})), "0 documents in 8 tokens");
    EXPECT_SAYS(open_message(temp, with(good, 24, std::uint64_t{9})), "9 documents in 8 tokens");
    EXPECT_SAYS(open_message(temp, with(good, 32, ~std::uint64_t{0})), "bytes of text");
    EXPECT_SAYS(open_message(temp, with(good, 48, std::uint64_t{0})), "vocabulary of 0");
    EXPECT_SAYS(open_message(temp, with(good, 48, std::uint64_t{1} << 40)), "impossible");
    EXPECT_SAYS(open_message(temp, with(good, 56, 50000)), "eos id is 50000");
    EXPECT_SAYS(open_message(temp, with(good, 60, -2)), "bos id is -2");
    EXPECT_SAYS(open_message(temp, with(good, 64, 8u)), "unknown flags");
    EXPECT_SAYS(open_message(temp, with(good, 64, 4u)), "8 bytes are missing");  // a mask
    EXPECT_SAYS(open_message(temp, with(good, 64, 1u)), "lacks");
    EXPECT_SAYS(open_message(temp, with(good, 68, 1u)), "reserved");
    EXPECT_SAYS(open_message(temp, with(good, 72, ~std::uint64_t{0})), "replaced");
    EXPECT_SAYS(open_message(temp, with(good, 80, std::uint64_t{1})), "table of documents is damaged");
    EXPECT_SAYS(open_message(temp, with(good, 200, std::uint8_t{1})), "reserved");
    for (std::size_t at = 12; at < 256; ++at) {
        const std::string bytes = with(good, at, static_cast<char>(good[at] ^ 0x40), false);
        EXPECT_SAYS(open_message(temp, bytes), "header is damaged");
    }
}

TEST(TokenFile, EveryTruncationAndEveryFlippedBitOfTheContentIsFound) {
    const TempFolder temp;
    const std::string good = good_bytes(temp);
    for (std::size_t size = 0; size < good.size(); ++size)
        EXPECT_NE(open_message(temp, std::string_view(good).substr(0, size)), "") << size;
    EXPECT_SAYS(open_message(temp, good + "x"), "1 bytes too many");
    EXPECT_SAYS(open_message(temp, std::string_view(good).substr(0, good.size() - 1)), "1 bytes are missing");
    for (std::size_t at = 256; at < good.size(); ++at) {
        std::string bytes = good;
        bytes[at] ^= 1;
        EXPECT_NE(open_message(temp, bytes), "") << at;
    }
}

TEST(TokenFile, DocumentsThatDoNotGrowAreRefusedOnOpening) {
    const TempFolder temp;
    const std::string good = good_bytes(temp);
    const std::size_t offsets = good.size() - 5 * 8;  // of three documents and the end, then the hash of the one block
    const auto opened = [&](std::size_t document, std::uint64_t value) {
        const std::string path = temp.write("bad.tok", rehashed(with(good, offsets + document * 8, value)));
        return message_of([&] { TokenFile file(path); });
    };
    EXPECT_SAYS(opened(0, 1), "document 0 begins at token 1");
    EXPECT_SAYS(opened(1, 0), "must grow");
    EXPECT_SAYS(opened(1, ~std::uint64_t{0}), "must grow");
    EXPECT_SAYS(opened(3, 9), "ends at token 9 of 8");
}

TEST(TokenFile, AnIdOutsideTheVocabularyIsReportedWithItsPlaceWhenRead) {
    const TempFolder temp;
    const std::string path =
        temp.write("bad.tok", rehashed(with(good_bytes(temp, 100), 256 + 2 * 5, std::uint16_t{100})));
    const TokenFile file(path);
    std::vector<std::int32_t> ids(3);
    file.read(0, ids);
    const std::string message = message_of([&] { file.read(4, ids); });
    EXPECT_SAYS(message, path);
    EXPECT_SAYS(message, "token 5 (byte 266) is 100");
    EXPECT_SAYS(message, "vocabulary has 100");
}

TEST(TokenFile, ANegativeWideIdIsReportedToo) {
    const TempFolder temp;
    const std::string path =
        temp.write("bad.tok", rehashed(with(good_bytes(temp, 70000), 256 + 4 * 2, std::int32_t{-5})));
    std::vector<std::int32_t> ids(8);
    EXPECT_SAYS(message_of([&] { TokenFile(path).read(0, ids); }), "token 2 (byte 264)");
}

TEST(TokenFile, VersionOneIsReadAsBefore) {
    const TempFolder temp;
    const std::string good = good_bytes(temp);
    std::string old = good.substr(0, good.size() - 8);  // without the hash of the one block
    old = with(with(old, 8, 1u), 80, XXH3_64bits(old.data() + 256, old.size() - 256));
    const std::string path = temp.write("old.tok", old);
    const TokenFile file(path);
    file.verify();
    EXPECT_EQ(file.documents(), 3);
    EXPECT_FALSE(file.info().has_block_hashes);
    old[257] ^= 1;
    EXPECT_SAYS(open_message(temp, old), "content is damaged");
}

TEST(TokenFile, ADamagedBlockIsFoundByTheFirstReadThatTouchesItAndByNoOther) {
    const TempFolder temp;
    std::string bytes = read_file(make_tokens(temp / "a.tok", {100000}));  // 200000 bytes: four blocks of 32768 tokens
    bytes[256 + 2 * 65536 + 11] ^= 1;
    const TokenFile file(temp.write("b.tok", bytes));
    std::vector<std::int32_t> ids(10);
    file.read(65526, ids);
    file.read(98304, ids);
    for (const std::int64_t at : {65527, 65536, 90000, 98303})
        EXPECT_SAYS(message_of([&] { file.read(at, ids); }), "tokens 65536…98304 (bytes 131328…196864) are damaged");
    EXPECT_SAYS(message_of([&] { file.verify(); }), "damaged");
}

TEST(TokenFile, AMaskSaysWhichTokensAreToBePredicted) {
    const TempFolder temp;
    TokenFileInfo info;
    info.vocab_size = 100;
    info.has_mask = true;
    TokenFileWriter writer(temp / "a.tok", info);
    std::vector<std::uint8_t> want;
    for (int document = 0; document < 9; ++document) {
        std::vector<std::int32_t> ids(7, document);
        std::vector<std::uint8_t> targets;
        for (int i = 0; i < 7; ++i) targets.push_back(i > document % 5);
        writer.append(ids, targets);
        writer.append(std::vector<std::int32_t>{99});
        writer.end_document();
        want.insert(want.end(), targets.begin(), targets.end());
        want.push_back(1);
    }
    EXPECT_SAYS(message_of([&] {
                    writer.append(std::vector<std::int32_t>{1, 2}, std::vector<std::uint8_t>{1});
                }),
                "1 marks");
    writer.finish();
    const TokenFile file(temp / "a.tok");
    file.verify();
    ASSERT_TRUE(file.info().has_mask);
    for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_EQ(file.is_target(static_cast<std::int64_t>(i)), want[i] != 0) << i;
}

}  // namespace
}  // namespace keel
