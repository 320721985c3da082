#!/usr/bin/env python3
"""tests/sim/mutate.py: proof that the suite would notice. Takes one barrier, wait, bounds check or condition at a time out of the
CUDA kernels, builds the simulated ops again with it, and runs their tests: each mutant must fail.

    tests/sim/mutate.py BUILD_DIR [FILE.cu ...] [--only REGEX] [--write docs/cudasim_mutations.md]

BUILD_DIR is a finished build. The tree is not touched: a mutant is a copy, compiled with the commands of the build, linked into a
copy of the test. Not part of the suite (some seconds per mutant). Without files: every kernel of KEEL_CUDA_SOURCES but gpu.cu.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEST = "test_sim_kernels"
SECONDS = 120  # a mutant that runs longer hangs, and is noticed by that


def code_of(line):
    """The line without its comment, padded: columns stay."""
    at = line.find("//")
    return line if at < 0 else line[:at] + " " * (len(line) - at)


def mutants(text):
    """(line number, what was done, whole text of the mutant) for every mutation of a source."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        code = code_of(line)

        def with_line(new):
            return "\n".join(lines[:number] + [new] + lines[number + 1:])

        # Statements that only order or wait.
        for m in re.finditer(r"(__syncthreads|__syncwarp|barrier_sync|barrier_arrive|cp_async_commit|cp_async_wait<[^;]*>|"
                             r"mbarrier_wait|wgmma_wait<[^;]*>|wgmma_fence|wgmma_commit)\s*\([^;]*\)\s*;", code):
            yield number + 1, "without " + m.group(0).strip(), with_line(line[:m.start()] + ";" + line[m.end():])
        for m in re.finditer(r"cp_async_wait<([^;]*)>", code):
            yield (number + 1, "one group fewer waited for",
                   with_line(line[:m.start(1)] + "(" + m.group(1) + ") + 1" + line[m.end(1):]))
        # Guards that leave, and guards around a statement.
        for m in re.finditer(r"\bif\s*\(([^;{}]*)\)\s*(return|continue|break);", code):
            yield number + 1, "without " + m.group(0), with_line(line[:m.start()] + line[m.end():])
        # Comparisons, off by one. Not of template parameters, loops counted at compile time or includes.
        if not re.match(r"\s*(#|template|for \(int [a-z] = 0; [a-z] < [a-z]+; \+\+[a-z]\))", code):
            for m in re.finditer(r" (<=|>=|<|>) ", code):
                other = {"<": "<=", ">": ">=", "<=": "<", ">=": ">"}[m.group(1)]
                yield (number + 1, f"'{m.group(1)}' became '{other}' at column {m.start() + 2}",
                       with_line(line[:m.start()] + f" {other} " + line[m.end():]))
        # Terms of a conjunction.
        for m in re.finditer(r"&& ([^&|?:;]*?)(?=( &&|\)+\s|\)*;| \?|$))", code):
            if m.group(1).count("(") != m.group(1).count(")"):
                continue
            yield number + 1, f"without the term '{m.group(1).strip()}'", with_line(line[:m.start()] + "&& true" + line[m.end():])


class Build:
    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        with open(os.path.join(self.folder, "compile_commands.json")) as f:
            self.commands = {os.path.relpath(c["file"], ROOT): c for c in json.load(f)}
        out = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", TEST], capture_output=True, text=True, check=True)
        self.link = out.stdout.strip().split("\n")[-1]
        self.archive = os.path.join(self.folder, "kernels", "libkeel_kernels_sim.a")

    def run(self, source, text):
        """'' if the mutant survives, else what noticed it."""
        with tempfile.TemporaryDirectory() as folder:
            path, obj = os.path.join(folder, os.path.basename(source)), os.path.join(folder, os.path.basename(source) + ".o")
            with open(path, "w") as f:
                f.write(text)
            command = self.commands[source]
            words = [w for w in shlex.split(command["command"]) if not w.endswith("ccache")]
            words[words.index("-o") + 1] = obj
            words[words.index("-c") + 1] = path
            for flag in ("-MF", "-MT"):
                if flag in words:
                    words[words.index(flag) + 1] = os.path.join(folder, "d")
            words = ["-O1" if w == "-O3" else w for w in words] + ["-Wno-error"]
            if subprocess.run(words, cwd=command["directory"], capture_output=True).returncode:
                return "the compiler"
            archive, program = os.path.join(folder, "lib.a"), os.path.join(folder, "test")
            shutil.copy(self.archive, archive)
            subprocess.run(["ar", "r", archive, obj], check=True, capture_output=True)
            link = self.link.replace("kernels/libkeel_kernels_sim.a", archive).replace(f"-o tests/sim/{TEST}", f"-o {program}")
            link = re.sub(r" && cd .*", "", link)
            subprocess.run(link, shell=True, cwd=self.folder, check=True, capture_output=True)
            try:
                ran = subprocess.run([program, "--gtest_brief=1"], capture_output=True, text=True, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                return "a hang"
            if ran.returncode == 0:
                return ""
            kinds = re.findall(r"^\s*(?:\"|Which is: \"|  )?([a-z ]+): (?:thread|threads|in block|lane|the launch|shared|output|argument|\w+ of)",
                               ran.stdout, re.M)
            return "finding: " + ", ".join(sorted(set(kinds))) if kinds else "values" if ran.returncode == 1 else "a crash"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--write")
    args = parser.parse_args()
    build = Build(args.build)
    files = args.files or sorted(f for f in build.commands if f.startswith("kernels/") and f.endswith(".cu") and "gpu.cu" not in f)
    rows, survivors = [], 0
    for source in files:
        with open(os.path.join(ROOT, source)) as f:
            text = f.read()
        if build.run(source, text):
            sys.exit(f"{source} fails without any mutation")
        for number, what, mutant in mutants(text):
            if not re.search(args.only, what):
                continue
            noticed = build.run(source, mutant)
            survivors += not noticed
            rows.append((source, number, what, noticed or "SURVIVED"))
            print(f"{source}:{number}: {what}: {noticed or 'SURVIVED'}", flush=True)
    print(f"{len(rows)} mutants, {survivors} survivors")
    if args.write:
        with open(os.path.join(ROOT, args.write), "w") as f:
            f.write("# Mutants of the CUDA kernels\n\nWritten by `tests/sim/mutate.py`: one barrier, wait, guard or condition at a time is "
                    f"changed, and `{TEST}` run.\n{len(rows)} mutants, {survivors} survivors.\n\n| where | mutation | noticed by |\n|---|---|---|\n")
            for source, number, what, noticed in rows:
                f.write(f"| {source}:{number} | `{what.replace('|', chr(92) + '|')}` | {noticed} |\n")
    return 1 if survivors else 0


sys.exit(main())
