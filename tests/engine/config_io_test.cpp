// The configuration as text: every setting survives the way to TOML and back, and mistakes are told with their place.
#include "engine/config_io.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <type_traits>

#include "engine/config_names.h"
#include "kernels/base/error.h"
#include "tests/temp_folder.h"

using namespace keel;

namespace {

std::string message(auto&& action) {
    try {
        action();
    } catch (const Error& error) {
        EXPECT_EQ(static_cast<int>(error.code()), 2) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
}

std::string message_of(const std::string& text) { return message([&] { (void)from_toml(text, "run.toml"); }); }

std::string message_of_flag(const std::string& key, const std::vector<std::string>& values) {
    return message([&] { (void)read_config("", {{key, values}}); });
}

}  // namespace

TEST(ConfigText, EverySettingSurvivesTheRoundTripToTheBit) {
    // Values that are hard to write: next to round ones, smallest and largest, and text that needs escapes.
    const double numbers[] = {0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, 3e-4, 1.0, -0.0, 123456789.125,
                              std::nextafter(0.3, 1.0)};
    const std::string texts[] = {"", "plain", "with \"quotes\" and \\", "two\nlines\ttab", "ünïcödé ☃", std::string("\x01\x7f")};
    std::size_t i = 0;
    Config config;
    for_each_setting(config, [&](const std::string& key, auto& member, const char*) {
        using T = std::remove_reference_t<decltype(member)>;
        ++i;
        if constexpr (std::is_same_v<T, bool>) member = !member;
        else if constexpr (std::is_same_v<T, double>) member = numbers[i % std::size(numbers)];
        else if constexpr (std::is_same_v<T, std::string>) {
            if (key != "model.preset") member = texts[i % std::size(texts)];
        } else if constexpr (std::is_integral_v<T>) member = std::numeric_limits<std::int64_t>::max() - static_cast<std::int64_t>(i);
        else if constexpr (std::is_same_v<T, std::vector<std::string>>) member = {texts[2], texts[3], texts[4]};
        else if constexpr (std::is_same_v<T, std::vector<double>>) member = {numbers[0], numbers[1], 2};
        else member = {1, -2, 3000000000};
    });
    const std::string text = to_toml(config);
    Config back = from_toml(text);
    EXPECT_EQ(to_toml(back), text);
    for_each_setting(config, [&](const std::string& key, auto& member, const char*) {
        using T = std::remove_reference_t<decltype(member)>;
        for_each_setting(back, [&](const std::string& other, auto& value, const char*) {
            if constexpr (std::is_same_v<std::remove_reference_t<decltype(value)>, T>) {
                if (other == key) {
                    EXPECT_EQ(member, value) << key;
                }
            }
        });
    });
}

TEST(ConfigText, DoublesAreWrittenWithTheFewestDigitsThatReadBack) {
    Config config;
    config.optim.lr = 0.1;
    EXPECT_EQ(value_text(config, "optim.lr"), "0.1");
    config.optim.lr = 3e-4;
    EXPECT_EQ(value_text(config, "optim.lr"), "3e-04");
    config.optim.lr = 2;
    EXPECT_EQ(value_text(config, "optim.lr"), "2.0");
}

TEST(ConfigText, PrecedenceIsDefaultsPresetFileFlags) {
    const test::TempFolder folder;
    const auto path = folder.write("precedence.toml", "[model]\npreset = \"llama-3.2-1b\"\nlayers = 4\nffn = 100\n[optim]\nlr = 1\n");
    const Config config = read_config(path, {{"model.ffn", {"200"}}, {"optim.beta1", {"0.8"}}});
    EXPECT_EQ(config.model.hidden, 2048);   // preset
    EXPECT_EQ(config.model.layers, 4);      // file over preset
    EXPECT_EQ(config.model.ffn, 200);       // flag over file
    EXPECT_EQ(config.optim.lr, 1.0);        // a whole number is a number
    EXPECT_EQ(config.optim.beta1, 0.8);
    EXPECT_EQ(config.optim.beta2, 0.95);    // default
    // A preset given as a flag replaces the file's, whichever comes first.
    EXPECT_EQ(read_config(path, {{"model.preset", {"tinyllama-1.1b"}}}).model.hidden, 2048);
    EXPECT_EQ(read_config(path, {{"model.preset", {"tinyllama-1.1b"}}}).model.vocab, 32000);
}

TEST(ConfigText, WholeNumbersMayBeWrittenWithAnExponent) {
    EXPECT_EQ(from_toml("[train]\nsamples = 1e6").train.samples, 1000000);
    EXPECT_EQ(from_toml("[train]\nsamples = 1_000").train.samples, 1000);
    EXPECT_EQ(read_config("", {{"train.samples", {"2.5e3"}}}).train.samples, 2500);
    EXPECT_EQ(read_config("", {{"train.samples", {"+7"}}}).train.samples, 7);
    EXPECT_EQ(read_config("", {{"train.samples", {"9007199254740993"}}}).train.samples, 9007199254740993);
}

TEST(ConfigText, MistakesInAFileAreToldWithLineAndColumn) {
    EXPECT_EQ(message_of("[optim]\nlrr = 1"), "run.toml:2:1: unknown setting optim.lrr; did you mean optim.lr?");
    EXPECT_EQ(message_of("[optim]\n\n  clip_grad = 1"), "run.toml:3:3: unknown setting optim.clip_grad; did you mean optim.clip?");
    EXPECT_EQ(message_of("[optim]\nzzzzzzzzz = 1"), "run.toml:2:1: unknown setting optim.zzzzzzzzz; `keel train --help` lists them all");
    EXPECT_EQ(message_of("[optin]\nlr = 1"), "run.toml:1:2: unknown section [optin]; did you mean [optim]?");
    EXPECT_EQ(message_of("[wandb]\nx = 1"),
              "run.toml:1:2: unknown section [wandb]; sections are model, data, train, optim, memory, parallel, numerics, ckpt, exit, "
              "watch, observe, fault, inject, run, profile");
    EXPECT_EQ(message_of("seed = 1"), "run.toml:1:1: \"seed\" stands outside of any section; did you mean train.seed?");
    EXPECT_EQ(message_of("optim = 1"), "run.toml:1:1: \"optim\" is a section: write [optim] on its own line");
    EXPECT_EQ(message_of("[optim]\nlr = \"3e-4\""), "run.toml:2:6: optim.lr is the string \"3e-4\"; it must be a number");
    EXPECT_EQ(message_of("[model]\nlayers = 1.5"), "run.toml:2:10: model.layers is 1.5; it must be a whole number");
    EXPECT_EQ(message_of("[model]\ntied = 1"), "run.toml:2:8: model.tied is 1; it must be true or false");
    EXPECT_EQ(message_of("[model]\ndtype = 1"), "run.toml:2:9: model.dtype is 1; it must be a string");
    EXPECT_EQ(message_of("[data]\nsplit = [1, \"x\"]"), "run.toml:2:9: data.split is the list [ 1, 'x' ]; it must be a list of numbers");
    EXPECT_EQ(message_of("[data]\ntrain = \"a.tok\""), "run.toml:2:9: data.train is the string \"a.tok\"; it must be a list of strings");
    EXPECT_EQ(message_of("[train]\nseed = -1"), "run.toml:2:8: train.seed is -1; it must be a whole number from 0 to 9223372036854775807");
    EXPECT_EQ(message_of("[train]\nbatch_ramp = 3"), "run.toml:2:14: train.batch_ramp is 3; it must be a list of whole numbers");
    EXPECT_TRUE(message_of("[optim]\nlr = 1\nlr = 2").starts_with("run.toml:3:"));  // twice
    EXPECT_TRUE(message_of("[optim\nlr = 1").starts_with("run.toml:1:"));
}

// The parser builds a table per part, and frees them recursively.
TEST(ConfigText, ANameOfAHundredThousandPartsIsRefusedAndNoStackOverflow) {
    std::string name;
    for (int i = 0; i < 100000; ++i) name += "a.";
    const std::string message = "a name of more than 64 parts; a setting has two, as in optim.lr";
    for (const std::string& text : {"[" + name + "b]\n", "\n" + name + "b = 1\n", "[optim]\nlr = {" + name + "b = 1}\n",
                                    "[[" + name + "b]]\n"}) {
        try {
            (void)from_toml(text, "c.toml");
            ADD_FAILURE() << text.substr(0, 20);
        } catch (const Error& e) {
            EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
            EXPECT_EQ(e.code(), ExitCode::usage);
        }
    }
    // Dots inside of strings are no parts, however many files a blend has.
    std::string files;
    for (int i = 0; i < 100; ++i) files += "\"part.of.\\\"the.text\", ";
    EXPECT_EQ(from_toml("# don't " + std::string(100, '.') + "\n[data]\ntrain = [" + files + "]\n", "c.toml").data.train.size(), 100u);
}

TEST(ConfigText, MistakesInAFlagNameTheFlag) {
    EXPECT_EQ(message_of_flag("optim.lr", {"fast"}), "--optim.lr fast: this must be a number");
    EXPECT_EQ(message_of_flag("optim.lr", {"1", "2"}), "--optim.lr takes one value, but 2 were given; give it once, with one value");
    EXPECT_EQ(message_of_flag("model.layers", {"2.5"}), "--model.layers 2.5: this must be a whole number");
    EXPECT_EQ(message_of_flag("model.layers", {"99999999999999999999"}), "--model.layers 99999999999999999999: this must be a whole number");
    EXPECT_EQ(message_of_flag("model.layers", {""}), "--model.layers : this must be a whole number");
    EXPECT_EQ(message_of_flag("model.tied", {"yes"}), "--model.tied yes: this must be true or false");
    EXPECT_EQ(message_of_flag("data.split", {"1", "x"}), "--data.split x: this is a list of numbers");
    EXPECT_EQ(message_of_flag("optim.lrr", {"1"}), "unknown setting --optim.lrr; did you mean --optim.lr?");
    EXPECT_EQ(message_of_flag("model.preset", {"llama-3.1-9b"}), "--model.preset llama-3.1-9b: there is no such preset; did you mean llama-3.1-8b?");
    EXPECT_EQ(message_of_flag("model.preset", {"gpt"}), "--model.preset gpt: there is no such preset; `keel estimate --presets` lists them");
}

TEST(ConfigHash, ChangesWithWhatCanChangeAResultAndNotWithWhereItRuns) {
    Config config;
    const std::string before = config_hash(config);
    EXPECT_EQ(before.size(), 16u);
    config.run.dir = "elsewhere";
    config.run.threads = 7;
    config.observe.http_port = 9100;
    EXPECT_EQ(config_hash(config), before);
    config.optim.lr = std::nextafter(config.optim.lr, 1.0);
    EXPECT_NE(config_hash(config), before);
}

TEST(Names, OtherSystemsSpellingsAreAnsweredWithKeels) {
    const auto known = setting_names();
    const std::pair<const char*, const char*> pairs[] = {
        {"--clip-grad", "optim.clip"},       {"--max_grad_norm", "optim.clip"},       {"--seq-length", "data.seq_len"},
        {"--lr", "optim.lr"},                {"--learning_rate", "optim.lr"},         {"--global-batch-size", "train.global_batch"},
        {"--batch", "train.global_batch"},   {"--train.batch", "train.global_batch"}, {"--data", "data.train"},
        {"--train-iters", "train.steps"},    {"--trainer.max_steps", "train.steps"},  {"--num_hidden_layers", "model.layers"},
        {"--save-interval", "ckpt.interval"}, {"--seed", "train.seed"},               {"--model.hiden", "model.hidden"},
        {"--optim.warmup", "optim.warmup_samples"}, {"--untie-embeddings-and-output-weights", "model.tied"},
        {"--tarin.seed", "train.seed"},      {"--optim.wieght_decay", "optim.weight_decay"}};
    for (const auto& [typed, meant] : pairs) EXPECT_EQ(nearest_name(typed, known).value_or("nothing"), meant) << typed;
    EXPECT_EQ(nearest_name("--completely-else", known), std::nullopt);
    EXPECT_EQ(nearest_name("--q", known), std::nullopt);
}

TEST(Names, EveryAliasLeadsToASettingThatExists) {
    const auto known = setting_names();
    for (const char* typed : {"num-layers", "bf16", "load", "save", "finetune", "data-path", "warmup-ratio", "n-embd", "epochs"}) {
        const std::string_view ours = known_alias(typed);
        EXPECT_NE(std::ranges::find(known, ours), known.end()) << typed << " -> " << ours;
    }
    EXPECT_EQ(dangling_aliases(known), std::vector<std::string>());
}

TEST(Names, DistanceCountsSwapsAsOne) {
    EXPECT_EQ(edit_distance("", ""), 0);
    EXPECT_EQ(edit_distance("abc", ""), 3);
    EXPECT_EQ(edit_distance("abcd", "abdc"), 1);
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}
