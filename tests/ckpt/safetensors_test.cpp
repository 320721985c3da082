// What a safetensors file may hold and what is refused, byte for byte, and what the writer makes.
#include "ckpt/safetensors.h"

#include <cmath>

#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

// A file with this header text and so many bytes of data (0, 1, 2, …).
std::string file_of(const std::string& header, std::size_t data_bytes) {
    const auto n = static_cast<std::uint64_t>(header.size());
    std::string bytes(reinterpret_cast<const char*>(&n), 8);
    bytes += header;
    for (std::size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i);
    return bytes;
}

SafetensorsHeader parse(const std::string& bytes) {
    return parse_safetensors_header(std::as_bytes(std::span(bytes)), static_cast<std::int64_t>(bytes.size()),
                                    "f.safetensors");
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

const std::string golden = from_hex(
    "9000000000000000 7b225f5f6d657461646174615f5f223a7b22666f726d6174223a227074227d2c"
    "2261223a7b226474797065223a22463332222c227368617065223a5b325d2c22646174615f6f6666"
    "73657473223a5b302c385d7d2c2262223a7b226474797065223a2242463136222c22736861706522"
    "3a5b312c335d2c22646174615f6f666673657473223a5b382c31345d7d7d2020"
    "0000803f000020c0 003f803f4940");

TEST(Safetensors, ReadsTheGoldenFile) {
    const TempFolder folder;
    write_bytes(folder / "g.safetensors", golden);
    const SafetensorsFile file(folder / "g.safetensors");
    ASSERT_EQ(file.tensors().size(), 2u);
    EXPECT_EQ(file.header().metadata.at("format"), "pt");
    EXPECT_EQ(file.header().data_offset, 152);
    float a[2], b[3];
    file.read(*file.find("a"), 0, 2, Dtype::f32, reinterpret_cast<std::byte*>(a));
    file.read(*file.find("b"), 0, 3, Dtype::f32, reinterpret_cast<std::byte*>(b));
    EXPECT_EQ(a[0], 1.0f);
    EXPECT_EQ(a[1], -2.5f);
    EXPECT_EQ(b[0], 0.5f);
    EXPECT_EQ(b[1], 1.0f);
    EXPECT_EQ(b[2], 3.140625f);
    file.read(*file.find("b"), 1, 2, Dtype::f32, reinterpret_cast<std::byte*>(a));
    EXPECT_EQ(a[1], 3.140625f);
    EXPECT_EQ(file.find("c"), nullptr);
    expect_error([&] { file.read(*file.find("b"), 2, 2, Dtype::f32, reinterpret_cast<std::byte*>(a)); },
                 {"tensor \"b\" has 6 bytes"});
}

TEST(Safetensors, WritesTheGoldenFile) {
    const float a[] = {1.0f, -2.5f};
    const bf16 b[] = {bf16(0.5f), bf16(1.0f), bf16(3.140625f)};
    std::string written;
    write_safetensors({{"b",
                        StoredDtype::BF16,
                        {1, 3},
                        converted_bytes(reinterpret_cast<const std::byte*>(b), Dtype::bf16, Dtype::bf16, 3)},
                       {"a",
                        StoredDtype::F32,
                        {2},
                        converted_bytes(reinterpret_cast<const std::byte*>(a), Dtype::f32, Dtype::f32, 2)}},
                      {}, [&](std::span<const std::byte> bytes) {
                          written.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                      });
    EXPECT_TRUE(written == golden);
}

TEST(Safetensors, AcceptsEveryLegalOddity) {
    EXPECT_TRUE(parse(from_hex("08000000000000007b7d202020202020")).tensors.empty());  // {} and padding
    EXPECT_TRUE(parse(from_hex("0600000000000000090a7b7d0d20")).tensors.empty());      // white space on both sides
    EXPECT_EQ(parse(file_of("{" + entry("s", "F32", "[]", "[0,4]") + "}", 4)).tensors[0].elements(), 1);
    EXPECT_EQ(parse(file_of("{" + entry("z", "F32", "[2,0]", "[0,0]") + "}", 0)).tensors[0].elements(), 0);
    EXPECT_EQ(parse(file_of("{" + entry("a", "U8", "[2]", "[0,2]") + "," + entry("z", "F32", "[0]", "[2,2]") + "," +
                                entry("b", "U8", "[1]", "[2,3]") + "}",
                            3))
                  .tensors.size(),
              3u);
    const auto reordered =
        parse(file_of("{" + entry("b", "U8", "[1]", "[2,3]") + "," + entry("a", "U8", "[2]", "[0,2]") + "}", 3));
    EXPECT_EQ(reordered.tensors[0].name, "a");
    for (const char* metadata : {"null", "{}", "{\"any\":\"text\"}"})
        EXPECT_NO_THROW(parse(file_of(concat("{\"__metadata__\":", metadata, "}"), 0)));
    // A field the format may grow later changes nothing about the fields it has.
    EXPECT_NO_THROW(parse(
        file_of("{\"a\":{\"dtype\":\"U8\",\"new\":{\"x\":[1,-2.5,null]},\"shape\":[1],\"data_offsets\":[0,1]}}", 1)));
    EXPECT_NO_THROW(parse(file_of("{" + entry("f", "F4", "[4]", "[0,2]") + "}", 2)));
}

TEST(Safetensors, ReadsDataAtOddAddresses) {
    const TempFolder folder;
    std::string bytes =
        file_of("{" + entry("u", "U8", "[1]", "[0,1]") + "," + entry("w", "F32", "[2]", "[1,9]") + "}", 0);
    bytes += '\x07';
    const float w[] = {1.5f, -3.0f};
    bytes.append(reinterpret_cast<const char*>(w), 8);
    write_bytes(folder / "odd.safetensors", bytes);
    const SafetensorsFile file(folder / "odd.safetensors");
    bf16 got[2];
    file.read(*file.find("w"), 0, 2, Dtype::bf16, reinterpret_cast<std::byte*>(got));
    EXPECT_EQ(static_cast<float>(got[0]), 1.5f);
    EXPECT_EQ(static_cast<float>(got[1]), -3.0f);
    expect_error([&] { file.read(*file.find("u"), 0, 1, Dtype::f32, reinterpret_cast<std::byte*>(got)); },
                 {"odd.safetensors", "tensor \"u\" is U8"});
}

struct Refusal {
    const char* what;
    std::string bytes;
    std::vector<std::string> says;
};

void expect_refused(const std::vector<Refusal>& refusals) {
    for (const Refusal& r : refusals) {
        SCOPED_TRACE(r.what);
        expect_error([&] { parse(r.bytes); }, {"f.safetensors"});
        for (const std::string& part : r.says) expect_error([&] { parse(r.bytes); }, {part});
    }
}

TEST(Safetensors, RefusesBadLengthsAndJson) {
    expect_refused({
        {"empty file", "", {"0 bytes is too short"}},
        {"7 bytes", "1234567", {"7 bytes is too short"}},
        {"n = 0", from_hex("0000000000000000"), {"not valid JSON"}},
        {"n past the end", from_hex("64000000000000007b7d"), {"claims 100 bytes, but only 2 follow"}},
        {"n = 2^64 - 1", from_hex("ffffffffffffffff7b7d"), {"claims 18446744073709551615 bytes"}},
        {"n = 100 000 001", from_hex("01e1f505000000007b7d"), {"claims 100000001 bytes"}},
        {"bad UTF-8", from_hex("0100000000000000ff"), {"not valid JSON"}},
        {"bad UTF-8 in a name", file_of("{\"\xff\":1}", 0), {"not valid JSON"}},
        {"cut JSON", from_hex("01000000000000007b"), {"not valid JSON"}},
        {"array", from_hex("08000000000000005b5d202020202020"), {"must be a JSON object, found an array"}},
        {"number", file_of("3", 0), {"must be a JSON object"}},
        {"two objects", file_of("{}{}", 0), {"not valid JSON"}},
        {"zero byte after the object", file_of(std::string("{}\0x", 4), 0), {"byte 2 of the JSON text is zero"}},
        {"byte order mark", file_of("\xef\xbb\xbf{}", 0), {"byte order mark"}},
        {"deep nesting",
         file_of("{\"a\":{\"x\":" + std::string(1000, '[') + std::string(1000, ']') + "}}", 0),
         {"nested more than"}},
    });
}

// What the parser is handed decides what it may read, whatever lengths the file and its header claim.
TEST(Safetensors, NeverReadsPastWhatItWasHanded) {
    const std::string start = from_hex("00e1f50500000000");  // a header of 100 000 000 bytes, the longest allowed
    expect_error([&] { parse_safetensors_header(std::as_bytes(std::span(start)), 200'000'000, "f.safetensors"); },
                 {"only 8 bytes of a header of 100000000 were handed over"});
}

TEST(Safetensors, RefusesBadMetadataAndFields) {
    const auto tensor = [](const std::string& fields, std::size_t data) {
        return file_of("{\"t\":{" + fields + "}}", data);
    };
    expect_refused({
        {"metadata value 3", file_of("{\"__metadata__\":{\"a\":3}}", 0), {"__metadata__", "\"a\" must be a string"}},
        {"metadata value null", file_of("{\"__metadata__\":{\"a\":null}}", 0), {"\"a\" must be a string"}},
        {"metadata value object", file_of("{\"__metadata__\":{\"a\":{}}}", 0), {"\"a\" must be a string"}},
        {"metadata a string", file_of("{\"__metadata__\":\"x\"}", 0), {"must be an object of strings, found a string"}},
        {"metadata an array", file_of("{\"__metadata__\":[]}", 0), {"must be an object of strings, found an array"}},
        {"tensor a number", file_of("{\"t\":1}", 0), {"tensor \"t\"", "must be an object"}},
        {"dtype F31",
         file_of("{" + entry("t", "F31", "[1]", "[0,4]") + "}", 4),
         {"tensor \"t\"", "unknown dtype \"F31\""}},
        {"dtype f32", file_of("{" + entry("t", "f32", "[1]", "[0,4]") + "}", 4), {"unknown dtype \"f32\""}},
        {"dtype a number",
         tensor("\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]", 4),
         {"\"dtype\" must be a string"}},
        {"no dtype", tensor("\"shape\":[1],\"data_offsets\":[0,4]", 4), {"\"dtype\" is missing"}},
        {"no shape", tensor("\"dtype\":\"F32\",\"data_offsets\":[0,4]", 4), {"tensor \"t\"", "\"shape\" is missing"}},
        {"no offsets", tensor("\"dtype\":\"F32\",\"shape\":[1]", 4), {"\"data_offsets\" is missing"}},
        {"shape [-2]", file_of("{" + entry("t", "F32", "[-2]", "[0,8]") + "}", 8), {"negative number -2"}},
        {"shape [2.0]", file_of("{" + entry("t", "F32", "[2.0]", "[0,8]") + "}", 8), {"the number 2.0"}},
        {"shape [true]", file_of("{" + entry("t", "F32", "[true]", "[0,4]") + "}", 4), {"found a boolean"}},
        {"shape a number", file_of("{" + entry("t", "F32", "2", "[0,8]") + "}", 8), {"\"shape\" must be an array"}},
        {"shape nested", file_of("{" + entry("t", "F32", "[[2]]", "[0,8]") + "}", 8), {"\"shape\" must be"}},
        {"offsets [-8,0]", file_of("{" + entry("t", "F32", "[2]", "[-8,0]") + "}", 8), {"negative number -8"}},
        {"three offsets", file_of("{" + entry("t", "F32", "[2]", "[0,4,8]") + "}", 8), {"has 3 numbers"}},
        {"one offset", file_of("{" + entry("t", "F32", "[2]", "[0]") + "}", 8), {"has 1 numbers"}},
        {"the same name twice",
         file_of("{" + entry("t", "U8", "[1]", "[0,1]") + "," + entry("t", "U8", "[1]", "[1,2]") + "}", 2),
         {"the name \"t\" is given twice"}},
        {"metadata twice", file_of("{\"__metadata__\":{},\"__metadata__\":{}}", 0), {"given twice"}},
        {"a field twice",
         tensor("\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]", 1),
         {"\"dtype\" is given twice"}},
    });
}

TEST(Safetensors, RefusesSizesAndOffsetsThatDoNotAddUp) {
    const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets,
                        std::size_t data) { return file_of("{" + entry("t", dtype, shape, offsets) + "}", data); };
    const auto two = [](const std::string& first, const std::string& second, std::size_t data) {
        return file_of("{" + first + "," + second + "}", data);
    };
    expect_refused({
        {"end before begin", one("F32", "[2]", "[8,0]", 8), {"tensor \"t\""}},
        {"F32 [3] with 8 bytes", one("F32", "[3]", "[0,8]", 8), {"takes 12 bytes, but data_offsets are [0, 8]"}},
        {"first begin 8", one("F32", "[2]", "[8,16]", 16), {"begins at byte 8", "a hole"}},
        {"overlap",
         two(entry("a", "F32", "[2]", "[0,8]"), entry("b", "F32", "[2]", "[4,12]"), 12),
         {"tensor \"b\"", "begins at byte 4", "must begin at 8", "an overlap"}},
        {"hole",
         two(entry("a", "U8", "[1]", "[0,1]"), entry("b", "U8", "[1]", "[2,3]"), 3),
         {"tensor \"b\"", "a hole"}},
        {"one extra byte", one("F32", "[2]", "[0,8]", 9), {"1 too many"}},
        {"one missing byte", one("F32", "[2]", "[0,8]", 7), {"1 are missing"}},
        {"no tensors but data", file_of("{}", 3), {"3 too many"}},
        {"shape past 63 bits", one("F32", "[2,18446744073709551614]", "[0,8]", 8), {"overflows"}},
        {"product past 64 bits", one("F32", "[2,9223372036854775807]", "[0,8]", 8), {"overflows 64 bits"}},
        {"bits past 64 bits", one("F32", "[9223372036854775807]", "[0,8]", 8), {"overflows 64 bits"}},
        {"F4 with 3 elements", one("F4", "[3]", "[0,1]", 1), {"12 bits, which is not a whole number of bytes"}},
    });
}

TEST(Safetensors, WritesAlignedSortedPaddedHeaders) {
    const auto bytes_of = [](std::size_t n) { return [n](const ByteSink& out) { out(std::vector<std::byte>(n)); }; };
    std::string written;
    write_safetensors({{"z", StoredDtype::U8, {3}, bytes_of(3)},
                       {"b", StoredDtype::F32, {1}, bytes_of(4)},
                       {"a\"\n", StoredDtype::F32, {1}, bytes_of(4)},
                       {"c", StoredDtype::F64, {1}, bytes_of(8)}},
                      {{"run", "r1"}}, [&](std::span<const std::byte> bytes) {
                          written.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                      });
    const SafetensorsHeader header = parse(written);
    ASSERT_EQ(header.tensors.size(), 4u);
    EXPECT_EQ(header.data_offset % 8, 0);
    EXPECT_EQ(header.tensors[0].name, "c");
    EXPECT_EQ(header.tensors[1].name, "a\"\n");
    EXPECT_EQ(header.tensors[2].name, "b");
    EXPECT_EQ(header.tensors[3].name, "z");
    EXPECT_EQ(header.metadata.at("format"), "pt");
    EXPECT_EQ(header.metadata.at("run"), "r1");
    const auto ignore = [](std::span<const std::byte>) {};
    expect_error(
        [&] {
            write_safetensors({{"a", StoredDtype::U8, {3}, bytes_of(2)}}, {}, ignore);
        },
        {"gave 2 bytes", "takes 3"});
    expect_error(
        [&] {
            write_safetensors({{"a", StoredDtype::U8, {1}, bytes_of(1)}, {"a", StoredDtype::U8, {1}, bytes_of(1)}}, {},
                              ignore);
        },
        {"\"a\"", "the name is taken"});
    expect_error(
        [&] {
            write_safetensors({{"__metadata__", StoredDtype::U8, {1}, bytes_of(1)}}, {}, ignore);
        },
        {"the name is taken"});
}

}  // namespace
}  // namespace keel::test
