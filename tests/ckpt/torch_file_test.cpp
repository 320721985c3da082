// Pickles and files of torch.save, written by Python (tests/golden/make_foreign.py) and by hand: what is in them is read, and
// nothing that they ask for is done.
#include "ckpt/foreign/torch_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/foreign/pickle.h"
#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;
using namespace std::string_literals;

const fs::path forms = fs::path(KEEL_TEST_DIR) / "golden/foreign";

std::vector<double> numbers(const FileTensor& t) {
    std::vector<double> out;
    for (std::int64_t row = 0; row < t.rows(); ++row)
        for (std::int64_t col = 0; col < t.row_elements(); ++col) {
            std::vector<std::byte> bytes(static_cast<std::size_t>(size_bits(t.dtype) / 8));
            t.file->read_at(t.begin + (row * t.row_stride + col) * size_bits(t.dtype) / 8, bytes);
            std::int64_t integer = 0;
            float real = 0;
            if (is_convertible(t.dtype)) convert(t.dtype, bytes.data(), Dtype::f32, reinterpret_cast<std::byte*>(&real), 1);
            else std::memcpy(&integer, bytes.data(), bytes.size());
            out.push_back(real + static_cast<double>(integer));
        }
    return out;
}

// A file of torch.save with this pickle and one storage of 8 bytes.
std::string zip_by_hand(const TempFolder& folder, const std::string& pickle) {
    const auto le = [](std::uint64_t value, int width) {
        std::string out;
        for (int i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i));
        return out;
    };
    std::string out, directory;
    for (const auto& [name, data] : {std::pair("a/data.pkl"s, pickle), std::pair("a/data/0"s, "12345678"s)}) {
        const std::string sizes = le(0, 4) + le(data.size(), 4) + le(data.size(), 4) + le(name.size(), 2) + le(0, 2);
        directory += "PK\1\2"s + le(0, 12) + sizes + le(0, 10) + le(out.size(), 4) + name;
        out += "PK\3\4"s + le(0, 10) + sizes + name + data;
    }
    const std::size_t at = out.size();
    out += directory + "PK\5\6"s + le(0, 4) + le(2, 2) + le(2, 2) + le(directory.size(), 4) + le(at, 4) + le(0, 2);
    return folder.write("hand.pt", out);
}

TEST(Pickle, OfEveryBinaryProtocolIsTheSameTree) {
    for (const char* file : {"plain2.pkl", "plain3.pkl", "plain4.pkl", "plain5.pkl"}) {
        SCOPED_TRACE(file);
        const Pickle pickle(read_file(forms / file), file);
        const PickleValue& root = pickle.root();
        EXPECT_TRUE(root.find("none")->is(Kind::none));
        EXPECT_TRUE(root.find("true")->is(Kind::boolean));
        EXPECT_EQ(root.find("int")->integer, 255);
        EXPECT_EQ(root.find("negative")->integer, -70000);
        EXPECT_EQ(root.find("big")->integer, std::int64_t{1} << 40);
        EXPECT_EQ(root.find("huge")->text, "\0\0\0\0\0\0\0\0\0\0\1"s);  // past 64 bits: its bytes
        EXPECT_EQ(root.find("real")->real, -1.5);
        EXPECT_EQ(root.find("text")->text, "h\xc3\xa9");
        EXPECT_EQ(root.find("bytes")->text, "\0\xff"s);
        EXPECT_EQ(root.find("list")->items[1]->items[0]->integer, 2);
        EXPECT_EQ(root.find("twice"), root.find("list"));
        EXPECT_EQ(root.find("tuple")->items.size(), 4u);
        EXPECT_EQ(root.find("set")->items.at(0)->integer, 7);
        EXPECT_EQ(root.find("ordered")->find("b")->integer, 2);
        EXPECT_EQ(root.find("object")->description(), "an object of argparse.Namespace");
        EXPECT_EQ(root.find("object")->find("answer")->integer, 42);
        EXPECT_EQ(root.find("absent"), nullptr);
    }
    expect_error([] { Pickle(read_file(forms / "plain0.pkl"), "plain0.pkl"); }, {"plain0.pkl: byte 2 of the pickle", "is none of protocols 2 to 5"});
    EXPECT_TRUE(Pickle(read_file(forms / "knot.pkl"), "knot").root().is(Kind::list));  // contains itself
}

TEST(Pickle, MistakesNameTheByteAndTheInstruction) {
    const auto refuses = [](const std::string& bytes, std::initializer_list<std::string> parts) {
        expect_error([&] { Pickle(bytes, "file"); }, parts);
    };
    refuses("", {"file: byte 0 of the pickle", "needs 1 bytes, but 0 are left"});
    refuses("\x80\x02K", {"byte 2", "instruction 0x4b 'K'", "needs 1 bytes"});
    refuses("\x80\x06N.", {"protocol 6; 2 to 5 are known"});
    refuses("X\xff\xff\xff\xffxx.", {"needs 4294967295 bytes, but 3 are left"});
    refuses("\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", {"needs 18446744073709551615 bytes"});
    refuses(".", {"ends with 0 values"});
    refuses("NN.", {"ends with 2 values"});
    refuses("0.", {"the stack is empty"});
    refuses("e.", {"no mark is set"});
    refuses("N(R.", {"the stack is empty"});  // what is below the mark is out of reach
    refuses("(NtNb.", {"sets the state of a tuple of 1"});
    refuses("h\5.", {"nothing was remembered as 5"});
    refuses("(Nd.", {"a key has no value"});
    refuses("Na.", {"the stack is empty"});
    refuses("NNa.", {"adds to None"});
    refuses("cos\nsystem", {"a line does not end"});
    refuses("NNR.", {"the arguments of a call are None, not a tuple"});
    refuses("\x82\1.", {"instruction 0x82", "is none of protocols 2 to 5"});  // an extension registry
    refuses("P1\n.", {"instruction 0x50 'P'"});
}

TEST(Pickle, FewBytesCannotAskForMuchMemory) {
    // A list of 2^16, then sets of it again and again: eight bytes each would be half a megabyte.
    std::string bytes = "\x80\x02]q\0("s + std::string(1 << 16, 'N') + "eq\1cbuiltins\nset\nq\2"s;
    for (int i = 0; i < 4096; ++i) bytes += "h\2h\1\x85R0"s;
    expect_error([&] { Pickle(bytes, "file"); }, {"the values take more than", "out of proportion"});
}

TEST(Pickle, DeepNestingIsNoRecursion) {
    const std::string deep = std::string(1'000'000, ']') + std::string(999'999, 'a') + ".";
    EXPECT_EQ(Pickle(deep, "deep").root().items.size(), 1u);
}

TEST(TorchFile, TensorsOfEveryTypeAndViewAreWhatTheyWere) {
    TorchFile file(forms / "kinds.pt");
    const TensorTable table = file.tensors(file.root());
    std::vector<double> base(24);
    for (std::size_t i = 0; i < 24; ++i) base[i] = static_cast<double>(i);
    for (const char* name : {"f32", "bf16", "f16", "f64"}) EXPECT_EQ(numbers(*table.find(name)), base) << name;
    EXPECT_EQ(table.find("f64")->dtype, StoredDtype::F64);
    EXPECT_EQ(numbers(*table.find("i64")), (std::vector<double>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(numbers(*table.find("u8")), (std::vector<double>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(numbers(*table.find("rows")), std::vector<double>(base.begin() + 6, base.begin() + 18));
    EXPECT_EQ(numbers(*table.find("every_second_row")), (std::vector<double>{0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17}));
    EXPECT_EQ(numbers(*table.find("columns")), (std::vector<double>{2, 3, 8, 9, 14, 15, 20, 21}));
    EXPECT_EQ(numbers(*table.find("parameter")), std::vector<double>(base.begin(), base.begin() + 6));
    EXPECT_EQ(numbers(*table.find("nested.deeper.x")), (std::vector<double>{2, 3, 4, 5}));
    EXPECT_EQ(numbers(*table.find("scalar")), std::vector<double>{2.5});
    EXPECT_EQ(table.find("empty")->shape, (std::vector<std::int64_t>{0, 3}));
    EXPECT_EQ(table.tensors.size(), 13u);
    file.check_storages();
    expect_error([] { TorchFile f(forms / "transposed.pt"); f.tensors(f.root()); }, {"\"transposed\" is a transposed view", "save tensor.contiguous()"});
}

TEST(TorchFile, WhatItAsksToBeCalledIsNotCalled) {
    TorchFile file(forms / "kinds.pt");
    const PickleValue* evil = file.root().find("evil");
    ASSERT_TRUE(evil && evil->is(Kind::object));
    EXPECT_EQ(evil->description(), "an object of posix.system");
    EXPECT_EQ(evil->arguments->items.at(0)->text, "touch keel-was-here");
    EXPECT_FALSE(fs::exists("keel-was-here"));
    expect_error([&] { file.tensor(*evil, "evil"); }, {"tensor \"evil\" is an object of posix.system, not a tensor"});
}

TEST(TorchFile, SizesPast4GiBStandInZip64) {
    TorchFile file(forms / "zip64.pt");
    EXPECT_EQ(numbers(*file.tensors(file.root()).find("x")).back(), 23);
}

TEST(TorchFile, OthersAreToldTheWay) {
    expect_error([] { TorchFile(forms / "old.pt"); }, {"before 1.6", "torch.save what torch.load gives"});
    expect_error([] { TorchFile(forms / "compressed.pt"); }, {"member \"archive/data.pkl\" is compressed", "zip it with -0"});
    expect_error([] { TorchFile(forms / "plain2.pkl"); }, {"is not a file of torch.save (a zip file)"});
}

TEST(TorchFile, CutAnywhereItIsRefused) {
    const TempFolder folder;
    const std::string bytes = read_file(forms / "kinds.pt");
    for (std::size_t size = 0; size < bytes.size(); size += size + 64 < bytes.size() ? 61 : 1) {
        folder.write("cut.pt", std::string_view(bytes).substr(0, size));
        expect_error([&] { TorchFile(folder / "cut.pt"); }, {"cut.pt"});
    }
}

TEST(TorchFile, ATensorPastItsStorageIsRefused) {
    const TempFolder folder;
    const auto tensor = [](const std::string& storage, const std::string& place) {
        return "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\n"s + storage + "\nX\1\0\0\0000X\3\0\0\0cpuK\2tQ"s + place + "tR.";
    };
    const auto read = [&](const std::string& pickle) {
        TorchFile file(zip_by_hand(folder, pickle));
        return file.tensor(file.root(), "t");
    };
    EXPECT_EQ(read(tensor("FloatStorage", "K\0K\2\x85K\1\x85"s)).shape, (std::vector<std::int64_t>{2}));
    for (const std::string& place : {"K\0K\3\x85K\1\x85"s, "K\1K\2\x85K\1\x85"s, "K\0K\2\x85K\2\x85"s, "K\0J\xff\xff\xff\x7f\x85J\xff\xff\xff\x7f\x85"s,
                                     "J\xff\xff\xff\xffK\1\x85K\1\x85"s})
        expect_error([&] { read(tensor("FloatStorage", place)); }, {"reaches past its storage, which has 2 elements"});
    expect_error([&] { read(tensor("FloatStorage", "K\0J\xff\xff\xff\xff\x85K\1\x85"s)); }, {"has a negative size"});
    expect_error([&] { read(tensor("FloatStorage", "K\0K\2\x85)"s)); }, {"described in a way this reader does not know"});
    std::string ones = "K\0("s;  // nine dimensions
    for (int i = 0; i < 9; ++i) ones += "K\1"s;
    expect_error([&] { read(tensor("FloatStorage", ones + "t(K\1K\1K\1K\1K\1K\1K\1K\1K\1t"s)); }, {"has 9 dimensions; a model's have 8 at most"});
    expect_error([&] { read(tensor("ComplexFloatStorage", "K\0K\1\x85K\1\x85"s)); }, {"is stored as torch.ComplexFloatStorage"});
}

TEST(TorchFile, DictsThatShareDictsHaveBoundedNames) {
    std::string pickle = "\x80\x02}q\0"s;  // each dict holds the one before it twice: 2^40 paths
    for (char i = 0; i < 40; ++i) pickle += "0}q"s + static_cast<char>(i + 1) + "(X\1\0\0\0ah"s + i + "X\1\0\0\0bh"s + i + "u"s;
    const TempFolder folder;
    TorchFile file(zip_by_hand(folder, pickle + "."));
    expect_error([&] { file.tensors(file.root()); }, {"the names of its tensors take more than"});
}

}  // namespace
}  // namespace keel::test
