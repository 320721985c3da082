// cli/main.cpp: the front door: reads the clock, finds the subcommand, and turns every error into one line and a code.
// Exit codes: 0 done, 1 failed, 2 the command line or configuration was wrong.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "cli/commands.h"
#include "cli/explain.h"
#include "engine/observe/ledger.h"
#include "kernels/base/error.h"

namespace {

constexpr const char* about =
    "keel trains Llama-family language models from one native binary.\n\n"
    "From text to a model, step by step:\n"
    "  keel tokenizer train --vocab 4096 --out tok book.txt       a byte-level BPE tokenizer\n"
    "  keel tokenize --tokenizer tok --out book.tok book.txt      text to token file\n"
    "  keel estimate --model.preset tiny --data.seq_len 256 …     what a run will need, before it runs\n"
    "  keel train --model.preset tiny --data.train book.tok …     train; writes checkpoints, log and report\n"
    "  keel eval …, keel generate …                               measure it, let it write\n\n"
    "Every setting of a run is a flag (--optim.lr 3e-4), and the same name in a TOML file given with --config.\n"
    "`keel COMMAND --help` lists them.";

std::string version_text() { return std::string("keel ") + KEEL_VERSION + ", built for " + KEEL_ARCH; }

int finish(int code) {
    // Output that could not be written is a failure, but a reader who left (`keel … | head`) is not.
    if (std::fflush(stdout) != 0 && errno != EPIPE && code == 0) {
        std::perror("keel: error: standard output");
        return 1;
    }
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    keel::process_start();
    std::signal(SIGPIPE, SIG_IGN);  // a broken pipe is a failed write, not a killed run

    CLI::App app(about, "keel");
    app.set_version_flag("--version", version_text(), "print the version and what it was built for");
    app.require_subcommand(1);
    app.get_formatter()->column_width(44);
    keel::add_estimate(app);

    try {
        app.parse(argc, argv);
        return finish(0);
    } catch (const CLI::Success& asked) {  // --help, --version
        app.exit(asked);
        return finish(0);
    } catch (const CLI::ParseError& error) {
        std::fprintf(stderr, "keel: error: %s\n", keel::explain(app, error).c_str());
        return finish(static_cast<int>(keel::ExitCode::usage));
    } catch (const keel::Error& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "keel: error: %s\n", error.what());
        return finish(static_cast<int>(error.code()));
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "keel: error: out of memory; `keel estimate` shows what a run needs and what would lower it\n");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "keel: error: %s\n", error.what());
    }
    return finish(1);
}
