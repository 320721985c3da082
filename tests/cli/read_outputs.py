"""What a run wrote, read by the programs it was written for, and compared with log.jsonl:

    python3 tests/cli/read_outputs.py RUN

event files by TensorBoard, metrics.prom by Prometheus's own parser (packages tensorboard, prometheus_client), trace.json by the
rules of the trace format. RUN is one session without evaluation and traced (--observe.trace_steps). Exit code 77: a package is
not installed.
"""
import collections
import glob
import json
import struct
import sys

try:
    from prometheus_client.parser import text_string_to_metric_families
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as missing:
    print(f"not read: {missing}")
    sys.exit(77)


def as_float32(x):
    return struct.unpack("f", struct.pack("f", float(x)))[0]


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got}, and log.jsonl has {wanted}")


def number(x):
    return float(x.replace("Inf", "inf")) if isinstance(x, str) else x  # "NaN" in JSON


run = sys.argv[1]
records = [json.loads(line) for line in open(f"{run}/log.jsonl")]
steps = [r for r in records if r["event"] == "step"]

# Event files.
(folder,) = glob.glob(f"{run}/tensorboard")
events = EventAccumulator(folder, size_guidance={"scalars": 0})
events.Reload()
for tag, field in (("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("train/learning_rate", "lr"),
                   ("speed/tokens_per_second", "tokens_per_second")):
    expect(tag, [(e.step, as_float32(e.value)) for e in events.Scalars(tag)],
           [(s["step"], as_float32(number(s[field]))) for s in steps])

# Prometheus.
samples = {}
families = list(text_string_to_metric_families(open(f"{run}/metrics.prom").read()))
for family in families:
    if not family.documentation:
        sys.exit(f"metrics.prom: {family.name} has no HELP")
    for s in family.samples:
        samples[s.name, s.labels.get("le")] = s.value
last = steps[-1]
for name, field in (("keel_step", "step"), ("keel_samples_total", "samples"), ("keel_tokens_total", "tokens"),
                    ("keel_train_loss", "loss"), ("keel_grad_norm", "grad_norm"), ("keel_learning_rate", "lr")):
    expect(name, samples[name, None], number(last[field]))
expect("keel_step_seconds_count", samples["keel_step_seconds_count", None], len(steps))
buckets = [v for (name, le), v in samples.items() if name == "keel_step_seconds_bucket"]
expect("buckets", buckets, sorted(buckets))
expect("the bucket +Inf", samples["keel_step_seconds_bucket", "+Inf"], len(steps))

# The trace: slices of a lane nest or follow each other, arrows have two ends, the later one later.
trace = json.load(open(f"{run}/trace.json"))["traceEvents"]
lanes, arrows = collections.defaultdict(list), collections.defaultdict(dict)
for e in trace:
    if e["ph"] == "X":
        lanes[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["name"]))
    elif e["ph"] in "sf":
        arrows[e["cat"], e["id"]][e["ph"]] = e
for lane, slices in lanes.items():
    open_until = []
    for begin, end, name in sorted(slices, key=lambda s: (s[0], -s[1])):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        if open_until and end > open_until[-1] + 1e-3:  # microseconds; times are written to the nanosecond
            sys.exit(f"trace.json: {name} of lane {lane} ends after what it lies in")
        open_until.append(end)
for key, ends in arrows.items():
    if set(ends) != {"s", "f"} or ends["s"]["pid"] == ends["f"]["pid"]:
        sys.exit(f"trace.json: arrow {key} does not lead from one rank to another")
print(f"{len(steps)} steps, {len(families)} metrics, {sum(map(len, lanes.values()))} slices, {len(arrows)} arrows")
