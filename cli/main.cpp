// cli/main.cpp: the front door: reads the clock, finds the subcommand, and turns every error into one line and a code.
// Exit codes: kernels/base/error.h, and docs/operations.md for whoever starts runs.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fcntl.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include "cli/commands.h"
#include "cli/complain.h"
#include "cli/explain.h"
#include "data/utf8.h"
#include "engine/observe/ledger.h"
#include "kernels/base/cpu.h"
#include "kernels/base/error.h"

namespace {

constexpr const char* about =
    "keel trains Llama-family language models from one native binary.\n\n"
    "From text to a model, step by step:\n"
    "  keel tokenizer train --vocab 4096 --out tok book.txt       a byte-level BPE tokenizer\n"
    "  keel tokenize --tokenizer tok --out book.tok book.txt      text to token file\n"
    "  keel data show --data.train book.tok --data.seq_len 256    what the model will see of it\n"
    "  keel estimate --model.preset tiny --data.seq_len 256 …     what a run will need, before it runs\n"
    "  keel train --model.preset tiny --data.train book.tok …     train; writes checkpoints, log and report\n"
    "  keel eval …, keel generate …                               measure it, let it write\n"
    "  keel report RUN RUN …                                      compare runs\n\n"
    "Every setting of a run is a flag (--optim.lr 3e-4), and the same name in a TOML file given with --config.\n"
    "`keel COMMAND --help` lists them.";

// A program may be started with its standard input, output or error closed. The next file it opened would take that number,
// and whatever is printed would go into a log, a token file or a checkpoint. So the numbers are taken first, each opened the
// wrong way round: what is printed still fails as on a closed descriptor, and is reported.
void occupy_standard_descriptors() {
    for (int fd = 0; fd <= 2; ++fd)
        if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

std::string version_text() {
    return keel::concat("keel ", KEEL_VERSION, ", built for ", KEEL_ARCH, ", Unicode ", keel::unicode_version());
}

int finish(int code) {
    // Output that could not be written is a failure, but a reader who left (`keel … | head`) is not.
    errno = 0;
    if (std::fflush(stdout) != 0 && errno != EPIPE && code == 0) {
        std::perror("keel: error: standard output");
        return 1;
    }
    return code;
}

void add_commands(CLI::App& app) {
    keel::add_tokenizer(app);
    keel::add_tokenize(app);
    keel::add_data(app);
    keel::add_estimate(app);
    keel::add_train(app);
    keel::add_eval(app);
    keel::add_generate(app);
    keel::add_inspect(app);
    keel::add_convert(app);
    keel::add_verify(app);
    keel::add_bench(app);
    keel::add_report(app);
    keel::add_devices(app);
}

// What must be given is a name of something (or a number), and "$UNSET" in a script gives the empty one.
void refuse_empty_values(CLI::App& app) {
    for (CLI::Option* option : app.get_options())
        if (option->get_required())
            option->check([](const std::string& value) { return std::string(value.empty() ? "it is empty" : ""); });
    for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) refuse_empty_values(*command);
}

int run(int argc, char** argv) {
    CLI::App app(about, "keel");
    app.set_version_flag("--version", version_text(), "print the version, what it was built for and its Unicode tables");
    app.require_subcommand(1);
    app.get_formatter()->column_width(44);
    add_commands(app);
    refuse_empty_values(app);
    if (argc <= 1) {
        std::fputs(app.help().c_str(), stderr);
        return static_cast<int>(keel::ExitCode::usage);
    }
    try {
        app.parse(argc, argv);
        return 0;
    } catch (const CLI::Success& asked) {  // --help, --version
        return app.exit(asked);
    } catch (const CLI::RuntimeError& over) {  // a command that has said what there was to say
        return over.get_exit_code();
    } catch (const CLI::ParseError& error) {
        keel::fail_usage(keel::explain(app, error));
    }
}

}  // namespace

int main(int argc, char** argv) {
    keel::process_start();
    occupy_standard_descriptors();
    keel::require_cpu();
    std::signal(SIGPIPE, SIG_IGN);  // a broken pipe is a failed write, not a killed run
    std::signal(SIGXFSZ, SIG_IGN);  // nor is a file past `ulimit -f`
    try {
        return finish(run(argc, argv));
    } catch (...) {
        return finish(keel::complain(std::current_exception()));
    }
}
