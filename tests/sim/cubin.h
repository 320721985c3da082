// tests/sim/cubin.h: what the assembler made of each kernel, read from the device code inside of an object of nvcc:
// registers, shared memory, and instructions of the kinds that matter. No disassembler is needed: an instruction takes
// 16 bytes, and its low 12 bits say what it is.
#pragma once

#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace keel::cubin {

struct Kernel {
    int architecture = 0;  // 80, 90
    std::string name;      // "tiles_kernel<64, 2, 64>"
    int registers = 0, shared_bytes = 0;
    int mma = 0, ldmatrix = 0, cp_async = 0;
    int wgmma = 0, bulk = 0;  // bulk: loads of boxes
    int local = 0;  // loads and stores of local memory: spills, or arrays that are not in registers
};

struct Section {  // ELF64
    std::uint32_t name, type;
    std::uint64_t flags, address, offset, size;
    std::uint32_t link, info;
    std::uint64_t alignment, entry_bytes;
};

template <class T>
T at(std::string_view bytes, std::uint64_t offset) {
    T value{};
    if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
    return value;
}

// "void keel::on_cuda::(anonymous namespace)::add_kernel<float, 4>(float*, …)" is "add_kernel<float, 4>".
inline std::string short_name(const std::string& mangled) {
    int status = 0;
    char* const text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    std::string name = text ? text : mangled;
    std::free(text);
    name = std::regex_replace(name, std::regex(R"(keel::on_cuda::|\(anonymous namespace\)::|_GLOBAL__N__\w+::|^void )"),
                              "");
    name = std::regex_replace(name, std::regex(R"(\bCUB_\w+::)"), "CUB::");  // its version, and what it was built for
    // Arguments begin at the last parenthesis of the outermost level.
    int depth = 0;
    for (std::size_t i = 0; i < name.size(); ++i) {
        depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
        if (name[i] == '(' && depth == 0) return name.substr(0, i);
    }
    return name;
}

inline void count_instructions(Kernel& kernel, std::string_view code) {
    for (std::uint64_t i = 0; i + 16 <= code.size(); i += 16) switch (at<std::uint16_t>(code, i) & 0xfff) {
            case 0x23c:
                ++kernel.mma;
                break;  // HMMA
            case 0x83b:
                ++kernel.ldmatrix;
                break;  // LDSM
            case 0xfae:
                ++kernel.cp_async;
                break;  // LDGSTS
            case 0xdf0:
            case 0x9f0:
                ++kernel.wgmma;
                break;  // HGMMA, with a in registers or not
            case 0x5b4:
                ++kernel.bulk;
                break;  // UTMALDG
            case 0x983:
            case 0x387:
                ++kernel.local;
                break;  // LDL, STL
            default:
                break;
        }
}

// The kernels of one image for one architecture.
inline std::vector<Kernel> kernels_of_image(std::string_view elf) {
    const auto table = at<std::uint64_t>(elf, 0x28);
    const auto entry = at<std::uint16_t>(elf, 0x3a), count = at<std::uint16_t>(elf, 0x3c),
               names = at<std::uint16_t>(elf, 0x3e);
    const int architecture = static_cast<int>(at<std::uint32_t>(elf, 0x30) >> 8 & 0xff);
    const auto section = [&](std::uint64_t i) { return at<Section>(elf, table + i * entry); };
    const auto text_at = [&](std::uint64_t offset) { return std::string(elf.substr(offset).data()); };
    std::map<std::string, Kernel> kernels;  // by mangled name
    std::map<std::string, int> registers;
    for (std::uint64_t i = 0; i < count; ++i) {
        const Section s = section(i);
        const std::string name = text_at(section(names).offset + s.name);
        if (name.starts_with(".text.")) {
            Kernel& kernel = kernels[name.substr(6)];
            kernel.architecture = architecture;
            kernel.name = short_name(name.substr(6));
            count_instructions(kernel, elf.substr(s.offset, s.size));
        } else if (name.starts_with(".nv.shared._")) {
            kernels[name.substr(11)].shared_bytes = static_cast<int>(s.size);
        } else if (name == ".nv.info") {
            // Attributes: format, kind, bytes of what follows. Kind 0x2f is a symbol and its registers.
            for (std::uint64_t a = s.offset; a + 4 <= s.offset + s.size;) {
                const auto format = at<std::uint8_t>(elf, a), kind = at<std::uint8_t>(elf, a + 1);
                const auto bytes = format == 4 ? at<std::uint16_t>(elf, a + 2) : std::uint16_t{0};
                if (kind == 0x2f) {
                    const Section symbols = section(s.link);
                    const auto symbol = symbols.offset + at<std::uint32_t>(elf, a + 4) * std::uint64_t{24};
                    registers[text_at(section(symbols.link).offset + at<std::uint32_t>(elf, symbol))] =
                        static_cast<int>(at<std::uint32_t>(elf, a + 8));
                }
                a += 4u + bytes;
            }
        }
    }
    std::vector<Kernel> all;
    for (auto& [mangled, kernel] : kernels) {
        kernel.registers = registers[mangled];
        if (!kernel.name.empty()) all.push_back(kernel);
    }
    return all;
}

// All kernels of an object file, for every architecture.
inline std::vector<Kernel> kernels_of(std::string_view object) {
    constexpr std::string_view magic(
        "\x7f"
        "ELF",
        4);
    constexpr int cuda_machine = 190;
    std::vector<Kernel> all;
    for (auto i = object.find(magic); i != std::string_view::npos; i = object.find(magic, i + 4)) {
        const std::string_view elf = object.substr(i);
        if (at<std::uint16_t>(elf, 18) != cuda_machine) continue;
        for (Kernel& kernel : kernels_of_image(elf)) all.push_back(std::move(kernel));
    }
    return all;
}

}  // namespace keel::cubin
