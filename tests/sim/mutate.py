#!/usr/bin/env python3
"""tests/sim/mutate.py: proof that the suite would notice. One at a time it takes each barrier, wait, bounds check and term of a mask out
of the CUDA kernels (kernels/*.cu, *.cuh, comm/*.cu, *.cuh), and runs the tests that pass by that place: one of them must fail.

    tests/sim/mutate.py BUILD_DIR [--work FOLDER] [--files REGEX] [--only REGEX] [--jobs N] [--list]
        [--write docs/mutation.txt]

--files says which sources get mutants at all, --only which mutants are tried.

Mutants that change nothing a program could notice are known, with the reason: tests/sim/mutants_equivalent.txt.

BUILD_DIR is a finished build. The tree is not touched: sources with all mutants in them (tests/sim/mutants.py) are compiled once into
the work folder with the build's own commands and linked in front of its libraries. What each mutant met is kept in the work folder, so
that a run that was stopped goes on. Not part of the suite.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True  # nothing appears in the tree
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mutants as m  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = {"test_sim_kernels": ("kernels",), "test_comm_nccl": ("kernels", "comm")}  # and whose objects each links


def sources(files=""):
    found = []
    for folder in ("kernels", "comm"):
        found += [f"{folder}/{f}" for f in sorted(os.listdir(os.path.join(ROOT, folder))) if f.endswith((".cu", ".cuh"))]
    # Calls of the runtime, and wrappers of single instructions: nothing is computed there.
    wrappers = ("kernels/gpu.cu", "kernels/hopper.cuh", "kernels/tensor_map.cuh", "kernels/wgmma.cuh")
    return [f for f in found if f not in wrappers and re.search(files, f)]


class Build:
    def __init__(self, folder, work):
        self.folder, self.work = os.path.abspath(folder), os.path.abspath(work)
        os.makedirs(self.work, exist_ok=True)
        with open(os.path.join(self.folder, "compile_commands.json")) as f:
            self.commands = {os.path.relpath(c["file"], ROOT): c for c in json.load(f)}
        self.all, self.programs, self.tests = [], {}, []

    def compile(self, files):
        """Every file with its mutants; lines that the compiler cannot take with switches in them are left as they are."""
        cache = os.path.join(self.work, "skip.json")
        skip = set(json.load(open(cache))) if os.path.exists(cache) else set()
        for _ in range(20):
            found = m.Mutants(skip)
            for file in files:
                with open(os.path.join(ROOT, file)) as f:
                    text = found.instrument(file, f.read())
                self.write(file, text)
            self.write("keel_mutant.h", m.HEADER % len(found.all))
            bad = set()
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                bad.update(*pool.map(self.compile_one, [f for f in files if f.endswith(".cu")]))
            if not bad:
                self.all = found.all
                return
            if bad <= skip:
                sys.exit(f"does not compile, and not for the switches: {bad}")
            skip |= bad
            with open(cache, "w") as f:
                json.dump(sorted(skip), f)
        sys.exit(f"still does not compile: {skip}")

    def write(self, name, text):
        path = os.path.join(self.work, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        old = open(path).read() if os.path.exists(path) else None
        if old != text:
            with open(path, "w") as f:
                f.write(text)

    def compile_one(self, file):
        path, obj = os.path.join(self.work, file), os.path.join(self.work, file + ".o")
        newest = max(os.path.getmtime(os.path.join(folder, f)) for folder, _, names in os.walk(self.work) for f in names
                     if f.endswith((".cuh", ".h")) or os.path.join(folder, f) == path)
        if os.path.exists(obj) and os.path.getmtime(obj) > newest:
            return set()
        command = self.commands[file]
        words = [w for w in shlex.split(command["command"]) if not w.endswith("ccache")]
        words[words.index("-o") + 1] = obj
        words[words.index("-c") + 1] = path
        for flag in ("-MF", "-MT"):
            if flag in words:
                words[words.index(flag) + 1] = obj + ".d"
        words = ["-O1" if w in ("-O3", "-O2") else w for w in words]
        words[1:1] = [f"-I{self.work}"]
        print(f"compiling {file} with its mutants", flush=True)
        ran = subprocess.run(words + ["-w", "-Wno-error"], cwd=command["directory"], capture_output=True, text=True)
        if ran.returncode == 0:
            return set()
        places = set(re.findall(re.escape(self.work) + r"/(\S+?:\d+):\d+: (?:error|note|  required)", ran.stderr))
        errors = set(re.findall(re.escape(self.work) + r"/(\S+?:\d+):\d+: error", ran.stderr))
        if not errors and not places:
            sys.exit(ran.stderr)
        print("\n".join(line for line in ran.stderr.split("\n") if "error" in line)[:2000])
        # Headers have one line more than their originals, for the include of the switches.
        return {f"{p.rsplit(':', 1)[0]}:{int(p.rsplit(':', 1)[1]) - p.split(':')[0].endswith('.cuh')}" for p in errors or places}

    def link(self, files):
        for program, folders in PROGRAMS.items():
            objects = [os.path.join(self.work, f + ".o") for f in files if f.endswith(".cu") and f.split("/")[0] in folders]
            if not objects:
                continue
            out = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", program], capture_output=True, text=True, check=True)
            command = re.sub(r" && cd .*", "", [c for c in out.stdout.split("\n") if f"{program} " in c and "-o " in c][-1])
            target = re.search(r" -o (\S+)", command).group(1)
            path = os.path.join(self.work, program)
            command = command.replace(f" -o {target}", f" -o {path} " + " ".join(map(shlex.quote, objects)), 1)
            inputs = [os.path.join(self.folder, w) for w in shlex.split(command) if w.endswith((".o", ".a"))]
            if not os.path.exists(path) or os.path.getmtime(path) < max(map(os.path.getmtime, inputs)):
                subprocess.run(command, shell=True, cwd=self.folder, check=True)
            self.programs[program] = path

    def run(self, program, test, environment, seconds):
        """(what noticed, or ''; seconds it took)"""
        begin = time.time()
        try:
            ran = subprocess.run([self.programs[program], "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={test}"],
                                 capture_output=True, text=True, errors="replace", timeout=seconds, env={**os.environ, **environment})
        except subprocess.TimeoutExpired:
            return "a hang", time.time() - begin
        took = time.time() - begin
        if ran.returncode == 0:
            return "", took
        if ran.returncode != 1:
            return "a crash", took
        kinds = re.findall(r"(divergence|barrier count|deadlock|warp mismatch|inactive lane|out of bounds|misaligned|missing wait|"
                           r"missing fence|mbarrier|bad launch|bad copy|bad call|disagreement|nondeterminism): ", ran.stdout)
        return ", ".join(sorted(set(kinds))) if kinds else "values", took

    def look(self):
        """Which tests pass by which switch, and how long they take."""
        cache = os.path.join(self.work, "tests.json")
        newest = max(os.path.getmtime(p) for p in self.programs.values())
        if os.path.exists(cache) and os.path.getmtime(cache) > newest:
            with open(cache) as f:
                self.tests = json.load(f)
            return
        for program, path in self.programs.items():
            listed = subprocess.run([path, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
            suite = ""
            for line in listed.split("\n"):
                name = line.split("#")[0].strip()
                if not line.startswith("  "):
                    suite = name
                    continue
                passed = os.path.join(self.work, "reached")
                if os.path.exists(passed):
                    os.remove(passed)
                noticed, took = self.run(program, suite + name, {"KEEL_MUTANT": "0", "KEEL_MUTANT_REACHED": passed}, 600)
                if noticed:
                    sys.exit(f"{suite}{name} fails without any mutant: {noticed}")
                with open(passed) as f:
                    self.tests.append([took, program, suite + name, sorted(int(i) for i in f)])
        self.tests.sort()
        with open(cache, "w") as f:
            json.dump(self.tests, f)

    def judge(self, number):
        near = [t for t in self.tests if number in t[3]]
        if not near:
            return "SURVIVED: no test passes by"
        for took, program, test, _ in near:
            noticed, _ = self.run(program, test, {"KEEL_MUTANT": str(number)}, 30 + 10 * took)
            if noticed:
                return f"{noticed} ({test})"
        return f"SURVIVED {len(near)} tests"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--work", default="/tmp/keel_mutants")
    parser.add_argument("--files", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write")
    args = parser.parse_args()
    files = sources(args.files)
    if args.list:
        found = m.Mutants()
        for file in files:
            with open(os.path.join(ROOT, file)) as f:
                found.instrument(file, f.read())
        for file, line, what in found.all:
            print(f"{file}:{line}: {what}")
        print(len(found.all), "mutants")
        return 0
    build = Build(args.build, args.work)
    build.compile(files)
    build.link(files)
    build.look()
    known, state = {}, os.path.join(build.work, "met.json")
    if os.path.exists(state):
        with open(state) as f:
            known = {(k, n): v for k, n, v in json.load(f)}
    reasons = {}
    with open(os.path.join(ROOT, "tests/sim/mutants_equivalent.txt")) as f:
        for line in f:
            if " | " in line and not line.startswith("#"):
                key, reason = line.strip().rsplit(" | ", 1)
                reasons[key] = reason
    chosen, seen = [], {}
    for number, (file, line, what) in enumerate(build.all, 1):
        key = f"{file}: {what}"
        seen[key] = seen.get(key, 0) + 1  # the same words may stand in a file more than once
        if re.search(args.only, f"{file}:{line}: {what}"):
            chosen.append((number, (key, seen[key]), file, line, what))
    unknown = lambda key: key not in known or known[key].startswith("SURVIVED") and key[0] not in reasons
    # Those that nothing notices take longest, and come last.
    open_ones = sorted((c for c in chosen if unknown(c[1])), key=lambda c: (c[1][0] in reasons, c[0]))
    with ThreadPoolExecutor(args.jobs) as pool:
        for (_, key, file, line, what), met in zip(open_ones, pool.map(build.judge, [c[0] for c in open_ones])):
            print(f"{file}:{line}: {what}: {met}", flush=True)
            known[key] = met
            with open(state, "w") as f:
                json.dump([[k, n, v] for (k, n), v in known.items()], f)
    rows = []
    for _, key, file, line, what in chosen:
        met = known[key]
        if met.startswith("SURVIVED") and key[0] in reasons:
            met = f"changes nothing: {reasons[key[0]]}"
        rows.append((file, line, what, met))
    survivors = [r for r in rows if r[3].startswith("SURVIVED")]
    same = [r for r in rows if r[3].startswith("changes nothing")]
    summary = f"{len(rows)} mutants: {len(rows) - len(same) - len(survivors)} noticed, {len(same)} that change nothing, {len(survivors)} survivors"
    print(summary)
    if args.write:
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        with open(os.path.join(ROOT, args.write), "w") as f:
            f.write(f"tests/sim/mutate.py of {commit}: {summary}. Each line: where, what was done to it, what noticed it (and in which test).\n")
            for file, line, what, met in survivors + same + [r for r in rows if r not in survivors + same]:
                f.write(f"{file}:{line}: {what}: {met}\n")
    return 1 if survivors else 0


sys.exit(main())
